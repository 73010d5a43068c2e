import { afterEach, expect, test, vi } from "vitest";
import { plan } from "../server/client";
import { atRest, readInSlices, setMoving } from "./canvasMotion";

afterEach(() => setMoving(false));

test("a response is read once the viewport rests", async () => {
  const text = vi.fn(async () => '{"plans": [{}], "notes": []}');
  const response = { ok: true, status: 200, headers: new Headers(), text };
  vi.stubGlobal("fetch", async () => response);
  setMoving(true);
  const planned = plan({ nodes: [] }, "asker", {}, { ready: atRest });
  await new Promise((later) => setTimeout(later, 20));
  expect(text).not.toHaveBeenCalled();
  setMoving(false);
  expect((await planned).plans).toHaveLength(1);
});

test("long lists are read in slices that keep the page responsive, and not while the viewport moves", async () => {
  const busy = (milliseconds: number) => {
    const until = performance.now() + milliseconds;
    while (performance.now() < until);
    return milliseconds;
  };
  const read = vi.fn(busy);
  setMoving(true);
  const all = readInSlices(new Array(10).fill(3), read);
  await new Promise((later) => setTimeout(later, 20));
  expect(read).not.toHaveBeenCalled();
  setMoving(false);
  await vi.waitFor(() => expect(read).toHaveBeenCalled(), { interval: 1 });
  expect(read.mock.calls.length).toBeLessThan(5);
  expect(await all).toEqual(new Array(10).fill(3));
});
