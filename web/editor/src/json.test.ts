import * as lossless from "lossless-json";
import { afterEach, expect, test, vi } from "vitest";
import { parseJson } from "./json";

vi.mock("lossless-json", { spy: true });
afterEach(() => {
  vi.mocked(lossless.parse).mockClear();
});

test.each([
  ["9007199254740993", 9007199254740993n],
  ["-9007199254740993", -9007199254740993n],
  ['{"seed": 18446744073709551615}', { seed: 18446744073709551615n }],
  ['{"seed":18446744073709551615}', { seed: 18446744073709551615n }],
  ["[1,\n9007199254740993]", [1, 9007199254740993n]],
  ["[9007199254740993.0]", [9007199254740992]],
])("unsafe integers in %s stay exact", (text, value) => {
  expect(parseJson(text)).toEqual(value);
});

test.each([
  ["0.12345678901234567", 0.12345678901234567],
  [
    '{"seconds": [0.00012345678901234567, -3.1415926535897932e-5]}',
    { seconds: [0.00012345678901234567, -3.1415926535897932e-5] },
  ],
  ['{"hash":"a0123456789012345678"}', { hash: "a0123456789012345678" }],
])("JSON.parse reads %s", (text, value) => {
  expect(parseJson(text)).toEqual(value);
  expect(lossless.parse).not.toHaveBeenCalled();
});
