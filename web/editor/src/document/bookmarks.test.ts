import { expect, test } from "vitest";
import { parseJson, printJson } from "../json";
import { bookmarksOf, removeBookmark, setBookmark } from "./bookmarks";
import type { Doc } from "./model";

const DOC: Doc = {
  version: 0.4,
  nodes: [{ id: 2, type: "sub" }],
  links: [],
  extra: { ds: { scale: 1 } },
  definitions: { subgraphs: [{ id: "sub", nodes: [], links: [] }] },
};

test("P1.20 bookmarks, also in subgraphs, are stored in the file and leave no trace", () => {
  const one = setBookmark(DOC, 1, { path: [], x: 1.4, y: -2, zoom: 0.5 });
  const two = setBookmark(one, 9, { path: ["2"], x: 0, y: 0, zoom: 1 });
  const read = parseJson(printJson(two)) as Doc;
  expect([...bookmarksOf(read)]).toEqual([
    [1, { path: [], x: 1.4, y: -2, zoom: 0.5 }],
    [9, { path: ["2"], x: 0, y: 0, zoom: 1 }],
  ]);
  expect(read.extra).toMatchObject({ ds: { scale: 1 } });
  expect(removeBookmark(removeBookmark(two, 9), 1)).toEqual(DOC);
  expect([...bookmarksOf({ ...two, nodes: [] }).keys()]).toEqual([1]); // its graph was removed
});

test("P1.20 invalid bookmarks in a file are ignored, and an excessive zoom is limited", () => {
  const bookmarks = {
    "1": { path: ["77"], x: 0, y: 0, zoom: 1 },
    "2": { x: "0", y: 0, zoom: 1 },
    "3": { x: 0, y: 0, zoom: 1e9 },
    "4": null,
    "10": { x: 0, y: 0, zoom: 1 },
  };
  expect([...bookmarksOf({ ...DOC, extra: { katz: { bookmarks } } })]).toEqual([
    [3, { path: [], x: 0, y: 0, zoom: 4 }],
  ]);
});
