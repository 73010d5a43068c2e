/** Lets what is costly to draw come one after the other: a little in each frame, and less while the view moves. */
import { flushSync } from "react-dom";
import { useCanvas } from "./state";

/** Milliseconds of a frame that are spent, while the view moves and while it rests. */
const [MOVING, RESTING] = [1, 8];
/** Milliseconds after which a view that rests has its next turn where frames take longer, as without a GPU. */
const LATEST = 20;
/** Nodes that are drawn whole without waiting, of those that come in one frame. */
const AT_ONCE = 3;

let isMoving = false;
let isAsked = false;
let drawn = 0;
/** Drawn in this order: where nodes are, then, once the view rests, what is in them. */
const boxes = new Set<(moves: boolean) => void>();
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

/** Calls `draw`, which is light, when it is its turn, while the view moves too, and tells it whether it does. */
export function boxInTurn(draw: (moves: boolean) => void): void {
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
  if (isAsked) return; // what is drawn may ask for more: it is seen before the turn ends
  isAsked = true;
  requestAnimationFrame(() => requestAnimationFrame(next));
}

function goOn(): void {
  const frame = requestAnimationFrame(() => {
    clearTimeout(timer);
    next();
  });
  const timer = setTimeout(() => {
    if (isMoving) return;
    cancelAnimationFrame(frame);
    next();
  }, LATEST);
}

function next(): void {
  if (!isMoving || !useCanvas.getState().far) {
    // from afar all of them stand behind already while the view moves
    const until = performance.now() + (isMoving ? MOVING : RESTING);
    for (const waiting of isMoving ? [boxes] : [boxes, contents]) {
      for (const draw of waiting) {
        waiting.delete(draw);
        flushSync(() => draw(isMoving));
        if (performance.now() >= until) return goOn();
      }
    }
    if (!isMoving && boxes.size + contents.size > 0) return goOn();
  }
  isAsked = false;
  if (isMoving) return; // it begins anew when the view rests
  measureAll();
  whenDone();
  whenDone = () => {};
}

function measureAll(): void {
  const [measure] = unmeasured.values();
  if (measure === undefined) return;
  const ids = new Set(unmeasured.keys());
  unmeasured.clear();
  measure([...ids]); // in the next frame
  requestAnimationFrame(() => useCanvas.getState().settle(ids));
}
