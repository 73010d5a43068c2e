import { afterEach, beforeAll, expect, test, vi } from "vitest";
import { plan } from "../server/client";
import { atRest, readInTurns, whileMoving } from "./turns";

beforeAll(() => void vi.stubGlobal("requestAnimationFrame", () => 0));
afterEach(() => whileMoving(false));

test("an answer is read once the view rests", async () => {
  const text = vi.fn(async () => '{"plans": [{}], "notes": []}');
  const response = { ok: true, status: 200, headers: new Headers(), text };
  vi.stubGlobal("fetch", async () => response);
  whileMoving(true);
  const planned = plan({ nodes: [] }, "asker", {}, { ready: atRest });
  await new Promise((later) => setTimeout(later, 20));
  expect(text).not.toHaveBeenCalled();
  whileMoving(false);
  expect((await planned).plans).toHaveLength(1);
});

test("much is read in slices between which the page can answer, and none while the view moves", async () => {
  const busy = (milliseconds: number) => {
    const until = performance.now() + milliseconds;
    while (performance.now() < until);
    return milliseconds;
  };
  const read = vi.fn(busy);
  whileMoving(true);
  const all = readInTurns(new Array(10).fill(3), read);
  await new Promise((later) => setTimeout(later, 20));
  expect(read).not.toHaveBeenCalled();
  whileMoving(false);
  await vi.waitFor(() => expect(read).toHaveBeenCalled(), { interval: 1 });
  expect(read.mock.calls.length).toBeLessThan(5);
  expect(await all).toEqual(new Array(10).fill(3));
});

test.each([
  [16, 2],
  [80, 5],
  [400, 8],
])(
  "where a frame takes %d ms, as much as fits into a part of it is drawn: %d",
  async (frame, most) => {
    vi.resetModules();
    const { inTurn } = await import("./turns"); // nothing of what other tests asked for
    let now = 0;
    const asked: (() => void)[] = [];
    vi.spyOn(performance, "now").mockImplementation(() => now);
    vi.stubGlobal("requestAnimationFrame", (go: () => void) => asked.push(go));
    const draws = Array.from({ length: 40 }, () => vi.fn(() => (now += 4)));
    const drawn = () => draws.filter(({ mock }) => mock.calls.length > 0).length;
    for (const draw of draws) inTurn(draw);
    const inEach: number[] = [];
    for (let frames = 0; frames < 30; frames += 1) {
      const [before, began] = [drawn(), now];
      for (const go of asked.splice(0)) go();
      if (drawn() > before) inEach.push(drawn() - before);
      now = began + frame;
    }
    vi.restoreAllMocks();
    expect(drawn()).toBe(draws.length);
    expect(inEach[0]).toBe(2); // nothing is known of the frames yet
    expect(Math.max(...inEach)).toBe(most);
  },
);
