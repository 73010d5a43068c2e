/** Checks how a saved document is queued against a table of cases that the server's tests share. */
import { readFileSync } from "node:fs";
import { describe, expect, test } from "vitest";
import { type Doc, nodesOf } from "../document/model";
import { subgraphOf } from "../document/scope";
import { type Json, type JsonObject, listOf, parseJson } from "../json";
import { chosen } from "../prompts/alternatives";
import { withoutComments } from "../prompts/comments";
import { catalogOf } from "./catalog";
import { withUnpacked } from "./edits/subgraphs";
import { placedWidgets } from "./placed";
import { withChosenPrompts } from "./prompts";

interface Row {
  readonly name: string;
  readonly typed: string;
  readonly sent: string;
  readonly picks: readonly number[];
  readonly subgraphs: readonly string[];
  readonly nodes: Json;
  readonly links: Json;
  readonly unpacks?: boolean;
  readonly leaves: Readonly<Record<string, Readonly<Record<string, Json>>>>;
}

interface Table {
  readonly object_info: JsonObject;
  readonly subgraphs: JsonObject;
  readonly texts: readonly Row[];
  readonly names: readonly Row[];
  readonly documents: readonly Row[];
}

const TABLE = parseJson(
  readFileSync(new URL("../../../../tests/queued_cases.json", import.meta.url), "utf8"),
) as unknown as Table;
const CATALOG = catalogOf(TABLE.object_info);

/** Removes the backslashes as the server does. */
const unescaped = (text: string) => text.replaceAll(/\\([{}|])/g, "$1");

function picking(picks: readonly number[]): () => number {
  const remaining = [...picks];
  return () => remaining.shift() ?? 0;
}

function oneNode(type: string, value: string): Doc {
  return { nodes: [{ id: 1, type, widgets_values: [value] }], links: [] };
}

describe("texts [defect 9]", () => {
  test.each(TABLE.texts.map((row) => [row.typed, row] as const))("%s", (_, row) => {
    const sent = chosen(withoutComments(row.typed), picking(row.picks));
    expect(unescaped(sent)).toBe(row.sent);
    expect(chosen(withoutComments(sent), picking([]))).toBe(sent); // no alternatives are left
  });

  test("only widgets that are declared as prompts are treated as prompts", () => {
    const sent = (type: string) =>
      nodesOf(withChosenPrompts(oneNode(type, "{a|b} // c"), CATALOG, () => 0))[0]?.values;
    expect(sent("Text")).toEqual(["a "]);
    expect(sent("Loader")).toEqual(["{a|b} // c"]);
  });
});

test.each(TABLE.names.map((row) => row.typed))(
  "%s in a file name is left to the server [defect 9]",
  (typed) => {
    const doc = oneNode("SaveImage", typed);
    expect(withChosenPrompts(doc, CATALOG)).toBe(doc);
  },
);

describe("unpacking moves promoted values to the widgets that the server sets [defect 8]", () => {
  const rows = TABLE.documents.filter(({ unpacks }) => unpacks);
  test.each(rows.map((row) => [row.name, row] as const))("%s", (_, row) => {
    let doc: Doc = {
      version: 0.4,
      nodes: row.nodes,
      links: row.links,
      definitions: { subgraphs: row.subgraphs.map((name) => TABLE.subgraphs[name] ?? null) },
    };
    for (;;) {
      const instance = nodesOf(doc).find(({ type }) => subgraphOf(doc, type) !== undefined);
      if (instance === undefined) break;
      doc = withUnpacked(doc, CATALOG, [], instance.id)?.doc ?? {};
    }
    for (const [title, values] of Object.entries(row.leaves)) {
      const node = nodesOf(doc).find((one) => one.title === title);
      const placed = node === undefined ? [] : placedWidgets(node, CATALOG.get(node.type));
      const held = Object.fromEntries(placed.map(({ widget, value }) => [widget.name, value]));
      expect(held).toMatchObject(values);
    }
    expect(listOf(row.nodes)).not.toEqual([]);
  });
});
