import { expect, test } from "vitest";
import { nodesIn, shownFiles, workflowsOf } from "./shown";

const file = (name: string, workflow: string, node: string) => ({
  name,
  type: "output" as const,
  modified: 0,
  pixels: "",
  job: "",
  workflow,
  node,
});
const FILES = [
  file("new.png", "b", "9"),
  file("old.png", "a", "91"),
  file("older.png", "a", "9"),
  file("copied.png", "", ""),
];
const nameOf = (workflow: string) => ({ a: "portrait", b: "hills" })[workflow] ?? "";

test("P0.33 images are filtered by words, by workflow, and by node within it", () => {
  const shown = (wanted: object) =>
    shownFiles(FILES, { words: "", workflow: "", node: "", ...wanted }, nameOf).map(
      ({ name }) => name,
    );
  expect(shown({})).toHaveLength(4);
  expect(shown({ words: "Portrait" })).toEqual(["old.png", "older.png"]);
  expect(shown({ workflow: "hills" })).toEqual(["new.png"]);
  expect(shown({ workflow: "portrait", node: "9" })).toEqual(["older.png"]);
  expect(shown({ workflow: "portrait", node: "9", words: "old." })).toEqual([]);
});

test("P0.33 filters offer only existing values, the workflow of the newest image first", () => {
  expect(workflowsOf(FILES, nameOf)).toEqual(["hills", "portrait"]);
  expect(nodesIn(FILES, "portrait", nameOf)).toEqual(["9", "91"]);
  expect(nodesIn(FILES, "hill", nameOf)).toEqual([]);
});
