/**
 * Spreads expensive drawing over frames: a time budget per frame, smaller while the viewport moves.
 */
import { flushSync } from "react-dom";
import { useCanvas } from "../../state/canvas";
import { isMoving, setMoving } from "../../state/canvasMotion";

/** Milliseconds of drawing per frame, while the viewport moves and while it rests. */
const [MOVING_MS, RESTING_MS] = [1, 8];
/**
 * Milliseconds until the next turn of a resting viewport if frames take longer, as without a GPU.
 */
const MAX_DELAY_MS = 20;
/** Nodes per frame that are drawn in full without waiting. */
const MAX_IMMEDIATE_NODES = 3;

let isScheduled = false;
let drawn = 0;
/** Pending drawing in this order: boxes of nodes, then their contents once the viewport rests. */
const boxes = new Set<(moves: boolean) => void>();
const contents = new Set<() => void>();
const unmeasured = new Map<string, (ids: string[]) => void>();
let whenDone: () => void = () => {};

export function setViewportMoving(moves: boolean): void {
  setMoving(moves);
  if (!moves) soon();
}

/** Calls `done` once nothing is pending. */
export function whenRendered(done: () => void): void {
  whenDone = done;
  soon();
}

/**
 * Returns whether one more node may be drawn in full in this frame. It never overtakes pending
 * ones.
 */
export function mayRenderNow(): boolean {
  if (isMoving() || boxes.size + contents.size > 0 || drawn >= MAX_IMMEDIATE_NODES) return false;
  if (drawn === 0)
    requestAnimationFrame(() => {
      drawn = 0;
    });
  drawn += 1;
  return true;
}

/**
 * Calls the cheap `draw` in turn, also while the viewport moves; its argument says whether it
 * moves.
 */
export function queueBox(draw: (moves: boolean) => void): void {
  boxes.add(draw);
  soon();
}

/** Calls `draw` in turn while the viewport rests. The returned function cancels it. */
export function queueContents(draw: () => void): () => void {
  contents.add(draw);
  soon();
  return () => void contents.delete(draw);
}

/** Measures the link ends of a node once all pending nodes are drawn. */
export function measureEnds(id: string, measure: (ids: string[]) => void): void {
  unmeasured.set(id, measure);
  soon();
}

/** Skips the upcoming frame, which already has work. */
function soon(): void {
  if (isScheduled) return; // a draw may request more: the running turn sees it
  isScheduled = true;
  requestAnimationFrame(() => requestAnimationFrame(next));
}

function goOn(): void {
  const frame = requestAnimationFrame(() => {
    clearTimeout(timer);
    next();
  });
  const timer = setTimeout(() => {
    if (isMoving()) return;
    cancelAnimationFrame(frame);
    next();
  }, MAX_DELAY_MS);
}

function next(): void {
  if (!isMoving() || !useCanvas.getState().far) {
    // at low zoom, `NodeBoxes` shows all boxes during a move
    const until = performance.now() + (isMoving() ? MOVING_MS : RESTING_MS);
    for (const waiting of isMoving() ? [boxes] : [boxes, contents]) {
      for (const draw of waiting) {
        waiting.delete(draw);
        flushSync(() => draw(isMoving()));
        if (performance.now() >= until) return goOn();
      }
    }
    if (!isMoving() && boxes.size + contents.size > 0) return goOn();
  }
  isScheduled = false;
  if (isMoving()) return; // starts again when the viewport rests
  measureAll();
  whenDone();
  whenDone = () => {};
}

function measureAll(): void {
  const [measure] = unmeasured.values();
  if (measure === undefined) return;
  const ids = new Set(unmeasured.keys());
  unmeasured.clear();
  measure([...ids]); // applied in the next frame
  requestAnimationFrame(() => useCanvas.getState().settle(ids));
}
