import { afterEach, beforeAll, expect, test, vi } from "vitest";
import { plan } from "../server/client";
import { atRest, whileMoving } from "./turns";

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
  await atRest();
});
