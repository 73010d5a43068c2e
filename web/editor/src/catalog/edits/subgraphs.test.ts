import { readFileSync } from "node:fs";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { NESTED } from "../../../e2e/graphs";
import { changeNode, removeNodes, setValue } from "../../document/commands";
import { hiddenOf, hideLinks } from "../../document/hidden";
import { type Doc, type DocNode, linksOf, nodesOf } from "../../document/model";
import { addReroute, waysOf } from "../../document/reroutes";
import {
  changeAt,
  graphAt,
  graphsOf,
  renameSubgraph,
  subgraphOf,
  trail,
} from "../../document/scope";
import { expectAgreement } from "../../document/testing";
import { isObject, type Json, type JsonObject, listOf, parseJson } from "../../json";
import { catalogOf } from "../catalog";
import { shownPlaced } from "../promoted";
import { withMade, withPromotion, withUnpacked } from "./subgraphs";

const CATALOG = catalogOf({
  CLIPTextEncode: {
    input: { required: { text: ["STRING", {}], clip: ["CLIP"] } },
    output: ["CONDITIONING"],
  },
  Number: { input: { required: { value: ["INT", {}] } }, output: ["INT"] },
  Latent: {
    input: { required: { width: ["INT", { default: 64 }], height: ["INT", { default: 64 }] } },
    output: ["LATENT"],
  },
});

const HIRES = parseJson(
  readFileSync(new URL("../../../../../workflows/hires_inpaint_ui.json", import.meta.url), "utf8"),
) as Doc;

const slot = (name: string, type: string, link: number | null, widget = false) => ({
  name,
  type,
  link,
  ...(widget ? { widget: { name } } : {}),
});

/** A subgraph with one number that sets both sides of a latent. */
const SIZED: Doc = {
  last_node_id: 2,
  last_link_id: 2,
  version: 0.4,
  nodes: [
    {
      id: 1,
      type: "Number",
      pos: [0, 0],
      size: [200, 80],
      inputs: [],
      outputs: [{ name: "INT", type: "INT", links: [1, 2] }],
      widgets_values: [96],
    },
    {
      id: 2,
      type: "Latent",
      pos: [300, 0],
      size: [200, 80],
      inputs: [slot("width", "INT", 1, true), slot("height", "INT", 2, true)],
      outputs: [{ name: "LATENT", type: "LATENT", links: [] }],
      widgets_values: [32, 48],
    },
  ],
  links: [
    [1, 1, 0, 2, 0, "INT"],
    [2, 1, 0, 2, 1, "INT"],
  ],
};

const make = (doc: Doc, path: readonly string[], ...nodes: readonly string[]) => {
  const made = withMade(doc, CATALOG, path, new Set(nodes), [], "Part");
  if (made === null) throw new Error("not made");
  return { doc: made.doc, node: made.nodes[0] ?? "" };
};
const unpack = (doc: Doc, path: readonly string[], node: string): Doc =>
  withUnpacked(doc, CATALOG, path, node)?.doc ?? doc;
const at = (doc: Doc, path: readonly string[]): Doc => graphAt(doc, path) ?? doc;
const nodeAt = (doc: Doc, path: readonly string[], id: string): DocNode => {
  const node = nodesOf(at(doc, path)).find((one) => one.id === id);
  if (node === undefined) throw new Error(`no node ${id}`);
  return node;
};
const shown = (doc: Doc, path: readonly string[], id: string) => {
  const node = nodeAt(doc, path, id);
  const placed = shownPlaced(node, subgraphOf(doc, node.type), CATALOG);
  return placed.map(({ widget, value }) => [widget.name, value]);
};

/** Returns a node without id, position and links. */
function plain({ id: _, pos: __, order: ___, ...raw }: JsonObject): JsonObject {
  const bare = (slots: Json | undefined, key: string) =>
    listOf(slots).map((one) => (isObject(one) ? { ...one, [key]: null } : one));
  return { ...raw, inputs: bare(raw.inputs, "link"), outputs: bare(raw.outputs, "links") };
}

/** Returns a graph without positions, with node ids replaced by `names`. */
function essence(graph: Doc, names: ReadonlyMap<string, string>) {
  const name = (id: string) => names.get(id) ?? id;
  const ways = waysOf(graph);
  const hidden = hiddenOf(graph).names;
  const points = [...ways.values()].flat();
  const links = linksOf(graph).map((link) => [
    `${name(link.from)} ${link.fromSlot} > ${name(link.to)} ${link.toSlot} ${link.type}`,
    // the number of links through each reroute of the link
    (ways.get(link.id) ?? []).map((point) => points.filter((one) => one === point).length),
    hidden.get(link.id) ?? null,
  ]);
  const nodes = nodesOf(graph).map(({ id, raw }) => [name(id), plain(raw)]);
  return { nodes: Object.fromEntries(nodes), links: links.sort() };
}

describe("making and unpacking", () => {
  test("P1.03 links across the boundary become inputs and outputs, with the values of widgets", () => {
    const { doc, node } = make(SIZED, [], "2");
    expect(nodeAt(doc, [], node).inputs).toMatchObject([{ name: "width", widget: "width" }]);
    expect(shown(doc, [], node)).toEqual([["width", 32]]);
    const inside = at(doc, [node]);
    expect(inside).toMatchObject({ name: "Part", version: 1, inputs: [{ linkIds: [1, 2] }] });
    expect(linksOf(doc)).toMatchObject([{ from: "1", to: node, toSlot: 0 }]);
    expect(linksOf(inside).map(({ from, to, toSlot }) => [from, to, toSlot])).toEqual([
      ["-10", "1", 0],
      ["-10", "1", 1],
    ]);
  });

  test("P1.03 unpacking keeps the values set on the subgraph", () => {
    const other = changeAt(NESTED as Doc, [], (graph) => setValue(graph, "2", 0, "a blue moon"));
    const doc = unpack(other, [], "2");
    const encode = nodesOf(doc).find(({ type }) => type === "CLIPTextEncode");
    expect(encode?.values).toEqual(["a blue moon"]);
    expect(linksOf(doc)).toMatchObject([{ from: "1", fromSlot: 1, to: encode?.id, toSlot: 0 }]);
    expect(doc.definitions).toEqual({ subgraphs: [] });
    expectAgreement(doc);
  });

  test("P1.03 lists of promoted widgets follow their inner nodes", () => {
    const proxied = changeAt(NESTED as Doc, [], (graph) =>
      changeNode(graph, "2", (raw) => ({
        ...raw,
        properties: { proxyWidgets: [["9", "text"]] },
      })),
    );
    const { doc, node } = make(proxied, ["2"], "9");
    const inner = nodesOf(at(doc, ["2", node]))[0]?.id ?? "";
    const listed = (one: Doc) => nodeAt(one, [], "2").raw.properties;
    expect(listed(doc)).toEqual({ proxyWidgets: [[`${node}:${inner}`, "text"]] });
    const back = unpack(doc, ["2"], node);
    const id = nodesOf(at(back, ["2"]))[0]?.id;
    expect(listed(back)).toEqual({ proxyWidgets: [[id, "text"]] });
    const outer = unpack(doc, [], "2"); // the middle node shows the widgets of the outer one
    const between = nodesOf(outer).find(({ type }) => subgraphOf(outer, type))?.id ?? "";
    expect(shown(outer, [], between)).toContainEqual(["text", "a red star"]);
  });

  test("P1.03 any nodes become a subgraph, and unpacking restores them", () => {
    const hires = linksOf(HIRES)
      .slice(0, 30)
      .reduce<Doc>((graph, { id }) => {
        const led = id % 2 === 0 ? addReroute(graph, id, { x: id, y: 0 }) : graph;
        return id % 3 === 0 ? hideLinks(led, new Set([id]), `link ${id}`) : led;
      }, HIRES);
    fc.assert(
      fc.property(
        fc.constantFrom(NESTED as Doc, hires, SIZED),
        fc.nat(9),
        fc.array(fc.nat(80), { minLength: 1, maxLength: 12 }),
        (start, depth, picks) => {
          const graphs = graphsOf(start);
          const { path, graph } = graphs[depth % graphs.length] ?? { path: [], graph: start };
          const all = nodesOf(graph);
          const chosen = new Set(picks.map((pick) => all[pick % all.length]?.id ?? ""));
          const { doc, node } = make(start, path, ...chosen);
          for (const one of graphsOf(doc)) expectAgreement(one.graph);
          const back = withUnpacked(doc, CATALOG, path, node);
          if (back === null) throw new Error("not unpacked");
          expectAgreement(at(back.doc, path));
          const old = all.filter(({ id }) => chosen.has(id)).map(({ id }) => id);
          const names = new Map(back.nodes.map((id, number) => [id, old[number] ?? id]));
          expect(essence(at(back.doc, path), names)).toEqual(essence(graph, new Map()));
          expect(listOf((back.doc.definitions as JsonObject).subgraphs).length).toBe(
            listOf((start.definitions as JsonObject | undefined)?.subgraphs).length,
          );
        },
      ),
      { numRuns: 60 },
    );
  });
});

test("P1.03 a subgraph without nodes is unpacked to its groups, at shifted positions", () => {
  const empty = changeAt(NESTED as Doc, ["2"], (graph) => ({
    ...removeNodes(graph, new Set(["9"])),
    groups: [{ title: "left", bounding: [10, 20, 30, 40] }],
  }));
  const doc = unpack(empty, [], "2");
  expect(nodesOf(doc).map(({ id }) => id)).toEqual(["1"]);
  expect(linksOf(doc)).toEqual([]);
  expect(doc.groups).toEqual([{ title: "left", bounding: [350, 20, 30, 40] }]);
});

test("P1.03 renaming a subgraph renames it in the breadcrumb", () => {
  const doc = renameSubgraph(NESTED as Doc, nodeAt(NESTED as Doc, [], "2").type, "Prompt");
  expect(trail(doc, ["2"])).toEqual(["Prompt"]);
});

test("P1.03 an inner field is promoted with its value, and its promotion is undone", () => {
  const { doc, node } = make(SIZED, [], "1");
  const promote = (one: Doc) => withPromotion(one, CATALOG, [node], "1", "value");
  const there = promote(doc);
  expect(there?.shown).toBe(true);
  expect(shown(there?.doc ?? doc, [], node)).toEqual([["value", 96]]);
  expect(promote(there?.doc ?? doc)).toEqual({ doc, shown: false });
  const set = changeAt(there?.doc ?? doc, [], (graph) => setValue(graph, node, 0, 12, "value"));
  const flat = unpack(set, [], node);
  expect(nodesOf(flat).find(({ type }) => type === "Number")?.values).toEqual([12]);
  expect(withPromotion(NESTED as Doc, CATALOG, ["2"], "9", "text")).toBeNull(); // it has a link
});
