/** Computes the lines of drawn links in graph coordinates, and their intersections. */
import type { Place } from "../../document/commands";
import { type Box, boundsOf } from "../../document/layout/alignment";

export type Line = readonly Place[];

interface DrawnLink {
  readonly id: number;
  readonly path: SVGPathElement;
  readonly bounds: Box;
}

/** Pixels between points of a line, unless that exceeds the maximum number of points. */
const STEP = 16;
const MAX_POINTS = 200;

/** Returns the links that are drawn from end to end. */
export function drawnLinks(): readonly DrawnLink[] {
  const edges = document.querySelectorAll<SVGGElement>(".react-flow__edge");
  return [...edges].flatMap((edge) => {
    const path = edge.querySelector<SVGPathElement>(".react-flow__edge-path:not(.stub)");
    const id = Number(edge.dataset.id);
    return path === null ? [] : [{ id, path, bounds: path.getBBox() }];
  });
}

/** Returns points along a drawn link. */
export function lineOf({ path }: Pick<DrawnLink, "path">): Line {
  const length = path.getTotalLength();
  const count = Math.max(2, Math.min(MAX_POINTS, Math.ceil(length / STEP) + 1));
  return Array.from({ length: count }, (_, at) =>
    path.getPointAtLength((length * at) / (count - 1)),
  );
}

/** Returns the bounding box of a line. */
export function boxAround(line: Line): Box {
  return boundsOf(line.map(({ x, y }) => ({ x, y, width: 0, height: 0 })));
}

export function overlap(one: Box, other: Box): boolean {
  return (
    one.x <= other.x + other.width &&
    other.x <= one.x + one.width &&
    one.y <= other.y + other.height &&
    other.y <= one.y + one.height
  );
}

export function crosses(one: Line, other: Line): boolean {
  return one.some((start, at) => {
    const end = one[at + 1];
    return (
      end !== undefined &&
      other.some((from, place) => {
        const to = other[place + 1];
        return to !== undefined && partsCross(start, end, from, to);
      })
    );
  });
}

/** Returns whether a line crosses a box or starts in it. */
export function runsThrough(line: Line, { x, y, width, height }: Box): boolean {
  const inside = (at: Place) => at.x >= x && at.x <= x + width && at.y >= y && at.y <= y + height;
  const corners = [
    { x, y },
    { x: x + width, y },
    { x: x + width, y: y + height },
    { x, y: y + height },
    { x, y },
  ];
  return line.some(inside) || crosses(line, corners);
}

/** Returns the index of the line segment nearest to a point, and its distance. */
export function nearestPart(line: Line, place: Place): { readonly part: number; far: number } {
  let best = { part: 0, far: Number.POSITIVE_INFINITY };
  line.slice(1).forEach((end, part) => {
    const start = line[part] ?? end;
    const [right, down] = [end.x - start.x, end.y - start.y];
    const length = right * right + down * down;
    const along = (place.x - start.x) * right + (place.y - start.y) * down;
    const share = length === 0 ? 0 : Math.max(0, Math.min(1, along / length));
    const far = Math.hypot(start.x + share * right - place.x, start.y + share * down - place.y);
    if (far < best.far) best = { part, far };
  });
  return best;
}

function partsCross(start: Place, end: Place, from: Place, to: Place): boolean {
  const side = (one: Place, other: Place, at: Place) =>
    Math.sign((other.x - one.x) * (at.y - one.y) - (other.y - one.y) * (at.x - one.x));
  return (
    side(start, end, from) !== side(start, end, to) && side(from, to, start) !== side(from, to, end)
  );
}
