import { existsSync, readdirSync, readFileSync } from "node:fs";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { isObject, type JsonObject, listOf, parseJson, printJson } from "../json";
import { copied, pasted } from "./clipboard";
import { addInput, removeNodes, setColour, setFlag, setTitle } from "./commands";
import { addGroup, moveGroup, removeGroup } from "./groups";
import { arranged } from "./layout/arrange";
import { connect, moveLinks, removeLinks } from "./links";
import { type Doc, groupsOf, linksOf, nodesOf } from "./model";
import { changeAt, graphAt, graphsOf, type Path } from "./scope";
import { expectAgreement } from "./testing";

const SHIPPED = new URL("../../../../workflows/hires_inpaint_ui.json", import.meta.url);
const OFFICIAL = new URL(
  "../../../../.venv/lib/python3.11/site-packages/comfyui_workflow_templates_json/",
  import.meta.url,
);

function read(file: URL): Doc {
  const data = parseJson(readFileSync(file, "utf8"));
  if (!isObject(data)) throw new Error(`${file} is no workflow`);
  return data;
}

/** A node with sockets on both sides, a v0.4 reroute, and a subgraph used twice. */
const NESTED: Doc = {
  last_node_id: 3,
  last_link_id: 1,
  version: 0.4,
  nodes: [
    {
      id: 1,
      type: "A",
      pos: [0, 0],
      size: [100, 50],
      outputs: [{ name: "x", type: "X", links: [1] }],
    },
    {
      id: 2,
      type: "sub",
      pos: [200, 0],
      size: [100, 50],
      inputs: [{ name: "in", type: "X", link: 1 }],
    },
    {
      id: 3,
      type: "sub",
      pos: [400, 0],
      size: [100, 50],
      inputs: [{ name: "in", type: "X", link: null }],
    },
  ],
  links: [[1, 1, 0, 2, 0, "X"]],
  groups: [],
  extra: {
    reroutes: [{ id: 1, pos: [50, 0], linkIds: [1] }],
    linkExtensions: [{ id: 1, parentId: 1 }],
  },
  definitions: {
    subgraphs: [
      {
        id: "sub",
        name: "Sub",
        version: 1,
        state: { lastNodeId: 7, lastLinkId: 5 },
        inputNode: { id: -10, bounding: [0, 0, 10, 10] },
        outputNode: { id: -20, bounding: [9, 0, 10, 10] },
        inputs: [{ id: "i", name: "in", type: "X", linkIds: [5] }],
        outputs: [{ id: "o", name: "out", type: "X", linkIds: [] }],
        nodes: [
          {
            id: 7,
            type: "B",
            pos: [0, 0],
            inputs: [{ name: "in", type: "X", link: 5 }],
            outputs: [{ name: "out", type: "X", links: [] }],
          },
        ],
        links: [{ id: 5, origin_id: -10, origin_slot: 0, target_id: 7, target_slot: 0, type: "X" }],
      },
    ],
  },
};

describe("links", () => {
  test("P0.12 links update a subgraph's own slots and reroutes", () => {
    const inside = changeAt(NESTED, ["2"], (graph) =>
      connect(graph, { node: "7", slot: 0 }, { node: "-20", slot: 0 }, "X"),
    );
    const graph = graphAt(inside, ["3"]);
    expect(graph && linksOf(graph).at(-1)).toMatchObject({ from: "7", to: "-20", id: 6 });
    expect(graph).toMatchObject({
      outputs: [{ linkIds: [6] }],
      links: [{ id: 5 }, { id: 6, origin_id: 7, target_id: -20 }],
      state: { lastLinkId: 6 },
    });
    const cut = removeLinks(NESTED, new Set([1]));
    expect(cut.extra).toEqual({ reroutes: [], linkExtensions: [] });
  });

  test("P0.06 P0.09 after any commands, both ends of every link agree in every graph", () => {
    const hires = read(SHIPPED);
    const command = fc.tuple(fc.nat(6), fc.nat(200), fc.nat(200), fc.nat(3));
    fc.assert(
      fc.property(
        fc.constantFrom(NESTED, hires),
        fc.array(command, { minLength: 1, maxLength: 25 }),
        (start, commands) => {
          let doc = start;
          for (const one of commands) doc = changed(doc, one);
          for (const { graph } of graphsOf(doc)) expectAgreement(graph);
        },
      ),
      { numRuns: 60 },
    );
  });
});

function changed(doc: Doc, [kind, first, second, slot]: readonly number[]): Doc {
  const graphs = graphsOf(doc);
  const path: Path = graphs[(first ?? 0) % graphs.length]?.path ?? [];
  return changeAt(doc, path, (graph) => {
    const nodes = nodesOf(graph);
    const [one, other] = [first, second].map((number) => nodes[(number ?? 0) % nodes.length]);
    if (one === undefined || other === undefined) return graph;
    switch (kind) {
      case 0:
        return removeNodes(graph, new Set([one.id]));
      case 1: {
        const output = one.outputs.length > 0 ? (slot ?? 0) % one.outputs.length : -1;
        const input = other.inputs.length > 0 ? (slot ?? 0) % other.inputs.length : -1;
        if (output < 0 || input < 0) return graph;
        return connect(graph, { node: one.id, slot: output }, { node: other.id, slot: input }, "X");
      }
      case 2:
        return removeLinks(
          graph,
          new Set(
            linksOf(graph)
              .slice(0, slot)
              .map(({ id }) => id),
          ),
        );
      case 3:
        return pasted(graph, copied(graph, new Set([one.id, other.id])), 0, 0)?.doc ?? graph;
      case 4:
        return addInput(graph, one.id, { name: `w${slot}`, type: "INT", link: null, widget: "w" });
      case 5: {
        const link = linksOf(graph)[(slot ?? 0) % Math.max(1, linksOf(graph).length)];
        if (link === undefined || one.outputs.length === 0 || other.inputs.length === 0)
          return graph;
        const from = { node: one.id, slot: (second ?? 0) % one.outputs.length };
        const to = { node: other.id, slot: (first ?? 0) % other.inputs.length };
        return moveLinks(graph, new Map([[link.id, { from, to, type: "X" }]]));
      }
      default:
        return setTitle(setFlag(graph, new Set([other.id]), "pinned", true), one.id, "named");
    }
  });
}

describe("files", () => {
  const files = existsSync(OFFICIAL)
    ? readdirSync(OFFICIAL, { recursive: true, encoding: "utf8" }).filter((name) =>
        name.endsWith(".json"),
      )
    : [];

  test.skipIf(files.length === 0)(
    "official templates are written as they were read, and reading them changes nothing",
    () => {
      let workflows = 0;
      for (const name of files) {
        const text = readFileSync(new URL(name, OFFICIAL), "utf8");
        const data = parseJson(text);
        expect(JSON.parse(printJson(data))).toEqual(JSON.parse(text));
        if (!isObject(data) || !Array.isArray(data.nodes)) continue;
        workflows += 1;
        for (const { graph } of graphsOf(data)) {
          expect(linksOf(graph).length).toBe(listOf(graph.links).length);
          expect(removeLinks(graph, new Set([-5]))).toEqual(graph);
        }
      }
      expect(workflows).toBeGreaterThan(100);
    },
    60_000,
  );
});

describe("appearance", () => {
  test("P0.11 a group frames its nodes and moves them", () => {
    const framed = addGroup(NESTED, new Set(["1", "2"]), "mine");
    const [group] = groupsOf(framed);
    const moved = moveGroup(framed, 0, { x: (group?.x ?? 0) + 10, y: (group?.y ?? 0) - 20 });
    expect(nodesOf(moved).map(({ x, y }) => [x, y])).toEqual([
      [10, -20],
      [210, -20],
      [400, 0],
    ]);
    expect(removeGroup(moved, 0).groups).toEqual([]);
  });

  test("P0.10 setting and resetting a property restores the file", () => {
    const there = setColour(
      setFlag(NESTED, new Set(["1"]), "collapsed", true),
      new Set(["1"]),
      "#123",
    );
    const back = setColour(setFlag(there, new Set(["1"]), "collapsed", false), new Set(["1"]), "");
    const [first] = listOf(back.nodes).filter(isObject);
    expect(first).toEqual({ ...(listOf(NESTED.nodes)[0] as JsonObject), flags: {} });
  });

  test("P0.13 arranged nodes are right of the nodes that they depend on, without overlap", () => {
    const doc = read(SHIPPED);
    const places = arranged(doc, new Set(), ({ height }) => height);
    const at = (id: string) => places.get(id) ?? { x: 0, y: 0 };
    for (const { from, to } of linksOf(doc)) expect(at(from).x).toBeLessThan(at(to).x);
    const nodes = nodesOf(doc);
    for (const one of nodes)
      for (const other of nodes.filter(({ id }) => id !== one.id && at(id).x === at(one.id).x))
        expect(
          at(other.id).y >= at(one.id).y + one.height ||
            at(one.id).y >= at(other.id).y + other.height,
        ).toBe(true);
  });
});
