import { expect, test } from "vitest";
import { othersText } from "./presence";

test("P1.23 others are told by name, and those without one by their number", () => {
  expect(othersText([])).toBe("");
  expect(othersText(["Ann", "", "Ann"])).toBe("Ann, another page");
  expect(othersText(["", ""])).toBe("2 other pages");
});
