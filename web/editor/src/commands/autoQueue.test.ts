import { expect, test } from "vitest";
import { isDue } from "./autoQueue";

test("P1.11 a document runs again if it has no errors and differs from the last run", () => {
  const right = { error: null, nodeErrors: {}, failing: new Set<string>(), notes: [] };
  const sent = { job: "one", work: "before" };
  expect(isDue(right, sent, "after")).toBe(true);
  expect(isDue(right, sent, "before")).toBe(false);
  expect(isDue({ ...right, error: {} }, sent, "after")).toBe(false);
  expect(isDue({ ...right, failing: new Set(["5"]) }, sent, "after")).toBe(false);
  expect(isDue(null, sent, "after")).toBe(false);
});
