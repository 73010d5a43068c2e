/** Lets what is costly to draw come one after the other: a little in each frame while the view moves. */
import { flushSync } from "react-dom";
import { useCanvas } from "./state";

/** Milliseconds that are spent at once, while the view moves and while it rests. */
const [MOVING, RESTING] = [3, 25];
let isMoving = false;
const waiting = new Set<() => void>();
const unmeasured = new Map<string, (ids: string[]) => void>();

export function whileMoving(moves: boolean): void {
  isMoving = moves;
}

/** How many come at once in a frame, without waiting. */
const AT_ONCE = 3;
let drawn = 0;

/** Whether there is time for one more in this frame; none passes those that wait. */
export function hasTime(): boolean {
  if (waiting.size > 0 || drawn >= AT_ONCE) return false;
  if (drawn === 0)
    requestAnimationFrame(() => {
      drawn = 0;
    });
  drawn += 1;
  return true;
}

/** Calls `draw` when it is its turn, unless what this returns is called before. */
export function inTurn(draw: () => void): () => void {
  if (waiting.size === 0) soon();
  waiting.add(draw);
  return () => void waiting.delete(draw);
}

function soon(): void {
  if (isMoving) requestAnimationFrame(next);
  else setTimeout(next);
}

function next(): void {
  const until = performance.now() + (isMoving ? MOVING : RESTING);
  for (const draw of waiting) {
    waiting.delete(draw);
    flushSync(draw);
    if (performance.now() >= until) break;
  }
  if (waiting.size > 0) soon();
  else measureAll();
}

/** Has the ends of a node's links measured, once all have been drawn whose turn it is. */
export function measureEnds(id: string, measure: (ids: string[]) => void): void {
  if (unmeasured.size === 0) requestAnimationFrame(measureAll);
  unmeasured.set(id, measure);
}

function measureAll(): void {
  const [measure] = unmeasured.values();
  if (waiting.size > 0 || measure === undefined) return;
  if (isMoving) return void requestAnimationFrame(measureAll); // which would hold the view up
  const ids = new Set(unmeasured.keys());
  unmeasured.clear();
  measure([...ids]); // in the next frame
  requestAnimationFrame(() => useCanvas.getState().settle(ids));
}
