import { expect, test } from "vitest";
import { badgesOf, hiddenOf, hideAll, hideLinks, hideType, showLinks } from "./hidden";
import { removeLinks } from "./links";
import type { Doc } from "./model";

const GRAPH: Doc = {
  version: 0.4,
  nodes: [
    {
      id: 1,
      type: "A",
      outputs: [
        { name: "x", type: "X", links: [1, 2, 3] },
        { name: "y", label: "why", type: "Y", links: [4] },
      ],
    },
    { id: 2, type: "B", inputs: [] },
  ],
  links: [
    [1, 1, 0, 2, 0, "X"],
    [2, 1, 0, 2, 1, "X"],
    [3, 1, 0, 2, 2, "X"],
    [4, 1, 1, 2, 3, "Y"],
  ],
  extra: { ds: { scale: 1 }, katz: { ids: { a: 1 } } },
};

test("P1.05 links are hidden singly with names, by type or all at once, and shown again", () => {
  const named = hideLinks(hideLinks(GRAPH, new Set([1, 2])), new Set([3]), "base");
  expect([...badgesOf(named)]).toEqual([
    [1, { name: "x", row: 0 }],
    [2, { name: "x", row: null }],
    [3, { name: "base", row: 1 }],
  ]);
  const typed = hideType(GRAPH, "Y", true);
  expect([...badgesOf(typed)]).toEqual([[4, { name: "why", row: 0 }]]);
  expect(badgesOf(hideAll(GRAPH, true)).size).toBe(4);
  const back = hideAll(hideType(showLinks(named, new Set([1, 2, 3])), "Y", false), false);
  expect(back).toEqual(GRAPH);
  expect(named.extra).toMatchObject(GRAPH.extra as object);
});

test("P1.05 names of removed links are deleted with the next change", () => {
  const named = hideLinks(GRAPH, new Set([1, 4]), "n");
  const cut = hideAll(removeLinks(named, new Set([1])), true);
  expect([...hiddenOf(cut).names]).toEqual([[4, "n"]]);
});

test("P1.05 invalid data in a file hides nothing", () => {
  for (const katz of [
    null,
    7,
    { hidden_links: [1] },
    { hidden_links: { all: 1, types: "X", a: 2 } },
  ])
    expect(badgesOf({ ...GRAPH, extra: { katz } }).size).toBe(0);
  const strange = { hidden_links: { "4": { html: "<b>" }, types: [null, 3] } };
  expect([...badgesOf({ ...GRAPH, extra: { katz: strange } })]).toEqual([
    [4, { name: "why", row: 0 }],
  ]);
});
