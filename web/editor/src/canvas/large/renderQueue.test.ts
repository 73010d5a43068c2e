import { expect, test, vi } from "vitest";

/**
 * Simulates a page with a fake clock: timers and animation frames run when due, `frame`
 * milliseconds apart.
 */
function pageWithFrames(frame: number) {
  let now = 0;
  const due = new Map<number, { readonly at: number; readonly go: () => void }>();
  const after = (go: () => void, milliseconds: number) => {
    const id = due.size + 1;
    due.set(id, { at: now + milliseconds, go });
    return id;
  };
  const not = (id: number) => void due.set(id, { at: Number.POSITIVE_INFINITY, go: () => {} });
  vi.spyOn(performance, "now").mockImplementation(() => now);
  vi.stubGlobal("requestAnimationFrame", (go: () => void) => after(go, frame - (now % frame)));
  vi.stubGlobal("cancelAnimationFrame", not);
  vi.stubGlobal("setTimeout", after);
  vi.stubGlobal("clearTimeout", not);
  return {
    takes: (milliseconds: number) => (now += milliseconds),
    /** Advances to the next callback; undefined if none is due. */
    next(): number | undefined {
      const [id, { at, go }] = [...due].reduce((one, other) =>
        other[1].at < one[1].at ? other : one,
      );
      if (at === Number.POSITIVE_INFINITY) return undefined;
      now = Math.max(now, at);
      not(id);
      go();
      return now;
    },
  };
}

test.each([
  [16, 16],
  [80, 28],
  [400, 28],
])(
  "with frames of %d ms, there is a turn every %d ms, with 8 ms of drawing each",
  async (frame, each) => {
    vi.resetModules();
    const { queueContents, measureEnds } = await import("./renderQueue"); // a fresh module without pending work
    const page = pageWithFrames(frame);
    const draws = Array.from({ length: 40 }, (_, at) =>
      vi.fn(() => {
        page.takes(4);
        measureEnds(`${at}`, () => {}); // requests a turn within a turn
      }),
    );
    const drawn = () => draws.filter(({ mock }) => mock.calls.length > 0).length;
    for (const draw of draws) queueContents(draw);
    const inEach: number[] = [];
    let [last, ended] = [0, 0];
    while (drawn() < draws.length) {
      ended = page.next() ?? Number.NaN;
      if (drawn() > last) inEach.push(drawn() - last);
      last = drawn();
    }
    vi.restoreAllMocks();
    vi.unstubAllGlobals();
    expect(inEach).toEqual(new Array(20).fill(2)); // 8 ms per frame, then the page can respond
    expect(ended).toBeLessThanOrEqual(2 * frame + 20 * each); // starts with the second frame
  },
);
