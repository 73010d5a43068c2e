import { expect, test } from "vitest";
import { othersText } from "./presence";

test("P1.23 other users are listed by name, unnamed ones by number", () => {
  expect(othersText([])).toBe("");
  expect(othersText(["Ann", "", "Ann"])).toBe("Ann, another page");
  expect(othersText(["", ""])).toBe("2 other pages");
});
