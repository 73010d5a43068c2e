import { expect, test } from "vitest";
import { weighed } from "./weights";

test("P0.23 the weight of the selection, or of the word at the cursor, is changed in steps", () => {
  const first = weighed({ text: "a red star", start: 2, end: 5 }, 1);
  expect(first.text).toBe("a (red:1.05) star");
  expect(first.text.slice(first.start, first.end)).toBe("red");
  expect(weighed(first, 1).text).toBe("a (red:1.1) star");
  expect(weighed(first, -1)).toEqual({ text: "a red star", start: 2, end: 5 });
  expect(weighed({ text: "a red star", start: 7, end: 7 }, -1).text).toBe("a red (star:0.95)");
  const nothing = { text: "a , b", start: 2, end: 2 };
  expect(weighed(nothing, 1)).toEqual(nothing);
});
