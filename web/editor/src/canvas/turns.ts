/** Lets what is costly to draw come one after the other: a little in each frame, and less while the view moves. */
import { flushSync } from "react-dom";
import { useCanvas } from "./state";

/** Milliseconds of a frame that are spent, while the view moves and while it rests. */
const [MOVING, RESTING] = [1, 8];
/** Where frames take long anyway, as on a busy machine, this part of one is spent, up to so many milliseconds. */
const [PART, MOST] = [0.25, 30];
/** Nodes that are drawn whole without waiting, of those that come in one frame. */
const AT_ONCE = 3;

let isMoving = false;
let isAsked = false;
let drawn = 0;
/** When the last frame began in which something was drawn, if it is the one before. */
let before = Number.NaN;
/** Drawn in this order: where nodes are, then, once the view rests, what is in them. */
const boxes = new Set<() => void>();
const contents = new Set<() => void>();
const unmeasured = new Map<string, (ids: string[]) => void>();
let whenDone: () => void = () => {};
const waiting = new Set<() => void>();

export function whileMoving(moves: boolean): void {
  isMoving = moves;
  if (moves) return;
  soon();
  for (const go of waiting) go();
  waiting.clear();
}

/** Waits until the view rests. */
export function atRest(): Promise<void> {
  return new Promise((go) => {
    if (isMoving) waiting.add(go);
    else go();
  });
}

/** Calls `done` once nothing waits. */
export function afterTurns(done: () => void): void {
  whenDone = done;
  soon();
}

/** Reads one after the other, a little at a time, and nothing while the view moves. */
export async function readInTurns<Told, Read>(
  all: readonly Told[],
  read: (one: Told) => Read,
): Promise<readonly Read[]> {
  const found: Read[] = [];
  while (found.length < all.length) {
    await new Promise((later) => setTimeout(later));
    await atRest();
    const until = performance.now() + RESTING;
    for (const one of all.slice(found.length)) {
      found.push(read(one));
      if (performance.now() >= until) break;
    }
  }
  return found;
}

/** Whether there is time to draw one more whole in this frame; none passes those that wait. */
export function hasTime(): boolean {
  if (isMoving || boxes.size + contents.size > 0 || drawn >= AT_ONCE) return false;
  if (drawn === 0)
    requestAnimationFrame(() => {
      drawn = 0;
    });
  drawn += 1;
  return true;
}

/** Calls `draw`, which is light, when it is its turn, while the view moves too. */
export function boxInTurn(draw: () => void): void {
  boxes.add(draw);
  soon();
}

/** Calls `draw` when it is its turn and the view rests, unless what this returns is called before. */
export function inTurn(draw: () => void): () => void {
  contents.add(draw);
  soon();
  return () => void contents.delete(draw);
}

/** Has the ends of a node's links measured, once all have been drawn whose turn it is. */
export function measureEnds(id: string, measure: (ids: string[]) => void): void {
  unmeasured.set(id, measure);
  soon();
}

/** Begins with the frame after this one, which has work already. */
function soon(): void {
  if (isAsked) return;
  isAsked = true;
  before = Number.NaN;
  requestAnimationFrame(() => requestAnimationFrame(next));
}

function goOn(): void {
  isAsked = true;
  requestAnimationFrame(next);
}

function next(): void {
  isAsked = false;
  const now = performance.now();
  const until = now + (isMoving ? MOVING : resting(now - before));
  before = now;
  if (isMoving && useCanvas.getState().far) return; // all of them stand behind already
  for (const waiting of isMoving ? [boxes] : [boxes, contents]) {
    for (const draw of waiting) {
      waiting.delete(draw);
      flushSync(draw);
      if (performance.now() >= until) return goOn();
    }
  }
  if (isMoving) return; // it begins anew when the view rests
  if (boxes.size + contents.size > 0) return goOn();
  measureAll();
  whenDone();
  whenDone = () => {};
}

/** What may be spent of a frame whose forerunner took so long. */
function resting(frame: number): number {
  return Math.min(MOST, Math.max(RESTING, PART * (frame || 0)));
}

function measureAll(): void {
  const [measure] = unmeasured.values();
  if (measure === undefined) return;
  const ids = new Set(unmeasured.keys());
  unmeasured.clear();
  measure([...ids]); // in the next frame
  requestAnimationFrame(() => useCanvas.getState().settle(ids));
}
