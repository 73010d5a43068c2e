import { expect, test } from "vitest";
import { docOf, useDocuments } from "./documents";

test("P1.12 several steps are undone or redone at once, within the history", () => {
  const { open, change, travel } = useDocuments.getState();
  open("a", { at: 0 });
  const [{ id } = { id: "" }] = useDocuments.getState().sessions;
  for (const at of [1, 2, 3]) change(id, `step ${at}`, (graph) => ({ ...graph, at }));
  const at = () => useDocuments.getState().sessions.map((session) => docOf(session).at);
  travel(id, -2);
  expect(at()).toEqual([1]);
  travel(id, 1);
  expect(at()).toEqual([2]);
  travel(id, -9);
  expect(at()).toEqual([0]);
  travel(id, 9);
  expect(at()).toEqual([3]);
});
