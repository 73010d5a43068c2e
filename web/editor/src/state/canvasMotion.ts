/** Records whether the viewport moves, so that expensive work can wait until it rests. */

/** Milliseconds of work between two pauses, in which the page can respond. */
const SLICE_MS = 8;

let moving = false;
const waiting = new Set<() => void>();

export function isMoving(): boolean {
  return moving;
}

export function setMoving(moves: boolean): void {
  moving = moves;
  if (moves) return;
  for (const go of waiting) go();
  waiting.clear();
}

/** Resolves once the viewport rests. */
export function atRest(): Promise<void> {
  return new Promise((go) => {
    if (moving) waiting.add(go);
    else go();
  });
}

/** Applies `read` to each item within the time budget; pauses while the viewport moves. */
export async function readInSlices<Item, Read>(
  all: readonly Item[],
  read: (one: Item) => Read,
): Promise<readonly Read[]> {
  const found: Read[] = [];
  while (found.length < all.length) {
    await new Promise((later) => setTimeout(later));
    await atRest();
    const until = performance.now() + SLICE_MS;
    for (const one of all.slice(found.length)) {
      found.push(read(one));
      if (performance.now() >= until) break;
    }
  }
  return found;
}
