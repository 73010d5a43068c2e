/** Computes positions at which boxes align, have equal gaps, or have straight links. Pure. */
import type { Place } from "../commands";

export interface Box extends Place {
  readonly width: number;
  readonly height: number;
}

export type Boxes = ReadonlyMap<string, Box>;

/** `centre` aligns a column of boxes, `middle` a row. */
export type Edge = "left" | "right" | "top" | "bottom" | "centre" | "middle";

export type Axis = "x" | "y";

const SIZE = { x: "width", y: "height" } as const;

/** Returns positions at which all boxes share an edge, the outermost one, or their middle. */
export function alignedAt(boxes: Boxes, edge: Edge): ReadonlyMap<string, Place> {
  const all = boundsOf([...boxes.values()]);
  const placed = ({ x, y, width, height }: Box): Place => {
    switch (edge) {
      case "left":
        return { x: all.x, y };
      case "right":
        return { x: all.x + all.width - width, y };
      case "centre":
        return { x: all.x + (all.width - width) / 2, y };
      case "top":
        return { x, y: all.y };
      case "bottom":
        return { x, y: all.y + all.height - height };
      case "middle":
        return { x, y: all.y + (all.height - height) / 2 };
    }
  };
  return new Map([...boxes].map(([id, box]) => [id, rounded(placed(box))]));
}

/** Returns positions with equal gaps. The first and the last box stay. */
export function distributed(boxes: Boxes, axis: Axis): ReadonlyMap<string, Place> {
  const size = SIZE[axis];
  const row = [...boxes].sort(
    ([, one], [, other]) => one[axis] + one[size] / 2 - other[axis] - other[size] / 2,
  );
  const [first, last] = [row[0]?.[1], row.at(-1)?.[1]];
  if (first === undefined || last === undefined || row.length < 3) return new Map();
  const taken = row.reduce((sum, [, box]) => sum + box[size], 0);
  const gap = (last[axis] + last[size] - first[axis] - taken) / (row.length - 1);
  let next = first[axis];
  return new Map(
    row.map(([id, box]) => {
      const at = next;
      next += box[size] + gap;
      return [id, rounded({ ...box, [axis]: at })];
    }),
  );
}

/** The vertical positions of the ends of a drawn link. */
export interface DrawnEnds {
  readonly id: number;
  readonly from: string;
  readonly to: string;
  readonly fromY: number;
  readonly toY: number;
}

export interface Straightened {
  readonly places: ReadonlyMap<string, Place>;
  /** The vertical positions of straight links by link id. */
  readonly links: ReadonlyMap<number, number>;
}

/**
 * Returns positions with straight links: from left to right, each box moves level with its first
 * link from an earlier one. A single box follows any of its links.
 */
export function straightened(boxes: Boxes, links: readonly DrawnEnds[]): Straightened {
  const down = new Map<string, number>();
  const straight = new Map<number, number>();
  const alone = boxes.size === 1;
  for (const [id] of [...boxes].sort(([, one], [, other]) => one.x - other.x)) {
    const back = links.find(
      ({ from, to }) => to === id && from !== id && (alone || down.has(from)),
    );
    const forth = alone ? links.find(({ from, to }) => from === id && to !== id) : undefined;
    const link = back ?? forth;
    if (link === undefined) {
      down.set(id, 0);
      continue;
    }
    const [other, own] = link === back ? [link.fromY, link.toY] : [link.toY, link.fromY];
    const level = other + (down.get(link === back ? link.from : link.to) ?? 0);
    down.set(id, level - own);
    straight.set(link.id, level);
  }
  const places = [...boxes].map(([id, { x, y }]): [string, Place] => [
    id,
    rounded({ x, y: y + (down.get(id) ?? 0) }),
  ]);
  return { places: new Map(places), links: straight };
}

/** A guide line: its position on one axis, and its start and end on the other. */
export interface Guide {
  readonly axis: Axis;
  readonly at: number;
  readonly from: number;
  readonly to: number;
}

export interface Alignment {
  /** The offset that aligns the box. */
  readonly by: Place;
  readonly guides: readonly Guide[];
}

/** Aligns a box with the nearest lines of other boxes within reach. */
export function alignment(box: Box, others: readonly Box[], reach: number): Alignment {
  const by = { x: shiftOf(box, others, "x", reach), y: shiftOf(box, others, "y", reach) };
  const placed = { ...box, x: box.x + by.x, y: box.y + by.y };
  return { by, guides: [...guidesOf(placed, others, "x"), ...guidesOf(placed, others, "y")] };
}

/** The distance below which two lines count as one. */
const LINE_TOLERANCE = 0.01;

function shiftOf(box: Box, others: readonly Box[], axis: Axis, reach: number): number {
  let best = 0;
  let least = reach;
  eachPair(box, others, axis, (own, goal) => {
    if (Math.abs(goal - own) > least) return;
    least = Math.abs(goal - own);
    best = goal - own;
  });
  return best;
}

/** Returns a guide for each line that a box shares with others. */
function guidesOf(box: Box, others: readonly Box[], axis: Axis): readonly Guide[] {
  const across = axis === "x" ? "y" : "x";
  const size = SIZE[across];
  const found = new Map<number, Guide>();
  eachPair(box, others, axis, (own, goal, other) => {
    if (Math.abs(own - goal) > LINE_TOLERANCE) return;
    const known = found.get(own) ?? { from: box[across], to: box[across] + box[size] };
    found.set(own, {
      axis,
      at: own,
      from: Math.min(known.from, other[across]),
      to: Math.max(known.to, other[across] + other[size]),
    });
  });
  return [...found.values()];
}

/**
 * Visits pairs of lines that may align: edges with edges, the middle with the middle. A drag visits
 * thousands per frame, so no objects are allocated.
 */
function eachPair(
  one: Box,
  others: readonly Box[],
  axis: Axis,
  visit: (own: number, goal: number, other: Box) => void,
): void {
  const size = SIZE[axis];
  const start = one[axis];
  const end = start + one[size];
  for (const other of others) {
    const first = other[axis];
    const last = first + other[size];
    visit(start, first, other);
    visit(start, last, other);
    visit(end, first, other);
    visit(end, last, other);
    visit((start + end) / 2, (first + last) / 2, other);
  }
}

/** Returns the bounding box of boxes. */
export function boundsOf(boxes: readonly Box[]): Box {
  const x = Math.min(...boxes.map((box) => box.x));
  const y = Math.min(...boxes.map((box) => box.y));
  const width = Math.max(...boxes.map((box) => box.x + box.width)) - x;
  const height = Math.max(...boxes.map((box) => box.y + box.height)) - y;
  return { x, y, width, height };
}

function rounded({ x, y }: Place): Place {
  return { x: Math.round(x), y: Math.round(y) };
}
