import { expect, test } from "vitest";
import { addNode, emptyDocument, setValue } from "../../document/commands";
import { addGroup } from "../../document/groups";
import { connect } from "../../document/links";
import { type Doc, groupsOf, linksOf, nodesOf } from "../../document/model";
import { expectAgreement } from "../../document/testing";
import { catalogOf } from "../catalog";
import { newNode } from "../placed";
import { unfolded } from "./stepNodes";

const SEED = ["INT", { control_after_generate: true }];
const CATALOG = catalogOf({
  Load: { output: ["MODEL"] },
  Text: { output: ["COND"] },
  Apply: { input: { required: { positive: ["COND"] } }, output: ["COND"] },
  Sample: {
    input: { required: { model: ["MODEL"], positive: ["COND"], seed: SEED } },
    output: ["LATENT"],
  },
  Begin: { input: { required: { model: ["MODEL"], seed: SEED } }, output: ["STEP"] },
  End: { input: { required: { step: ["STEP"], text: ["COND"] } }, output: ["LATENT"] },
  Decode: { input: { required: { samples: ["LATENT"] } }, output: ["IMAGE"] },
});
const STEP = {
  nodes: [
    {
      name: "begin",
      type: "Begin",
      title: "",
      values: { seed: 2n ** 64n - 1n },
      links: {},
      sources: { model: ["s:4", "model"] },
    },
    {
      name: "end",
      type: "End",
      title: "the end",
      values: {},
      links: { step: ["begin", 0] },
      sources: { text: ["s:3", "positive"] }, // the input of the ControlNet
    },
  ],
  end: "end",
  passedBy: ["s:3"],
} as const;

/** Load 1, Text 2 → Apply 3 → Sample 4 → Decode 5 from left to right; Text 6 below. */
function drawn(): Doc {
  const types = ["Load", "Text", "Apply", "Sample", "Decode", "Text"];
  const nodes = types.reduce<Doc>((graph, name, at) => {
    const type = CATALOG.get(name);
    return type
      ? addNode(graph, newNode(type, at === 5 ? 1200 : 400 * at, at === 5 ? 600 : 0))
      : graph;
  }, emptyDocument());
  const links = [
    ["1", "4", 0, "MODEL"],
    ["2", "3", 0, "COND"],
    ["3", "4", 1, "COND"],
    ["4", "5", 0, "LATENT"],
  ] as const;
  const linked = links.reduce<Doc>(
    (graph, [from, node, slot, type]) =>
      connect(graph, { node: from, slot: 0 }, { node, slot }, type),
    nodes,
  );
  return addGroup(setValue(linked, "4", 1, "increment"), new Set(["4", "5"]), "sampling");
}

function sampler(graph: Doc) {
  const node = nodesOf(graph).find(({ id }) => id === "4");
  if (node === undefined) throw new Error("no sampler");
  return node;
}

test("P1.15 a sampler and the nodes applied before it are replaced by its step nodes", () => {
  const graph = drawn();
  const made = unfolded(graph, CATALOG, sampler(graph), STEP, "s:");
  if (made === null) throw new Error("not written out");
  expectAgreement(made.graph);
  const nodes = new Map(nodesOf(made.graph).map((node) => [node.id, node]));
  const [begin = "", end = ""] = made.nodes;
  expect([...nodes.keys()]).toEqual(["1", "2", "5", "6", begin, end]);
  expect(nodes.get(begin)?.values).toEqual([2n ** 64n - 1n, "increment"]);
  expect(nodes.get(end)?.title).toBe("the end");
  const ends = linksOf(made.graph).map(({ from, to, toSlot }) => [from, to, toSlot]);
  expect(ends).toEqual(
    expect.arrayContaining([
      ["1", begin, 0],
      [begin, end, 0],
      ["2", end, 1],
      [end, "5", 0],
    ]),
  );
  expect(ends).toHaveLength(4);
});

test("P1.15 step nodes are framed by a group, and other nodes move to make room", () => {
  const graph = drawn();
  const made = unfolded(graph, CATALOG, sampler(graph), STEP, "s:");
  const [around, own] = groupsOf(made?.graph ?? {});
  const place = (id: string) => nodesOf(made?.graph ?? {}).find((node) => node.id === id);
  expect(own?.title).toBe("Sample");
  const right = (own?.x ?? 0) + (own?.width ?? 0);
  expect(place("5")?.x).toBeGreaterThan(right);
  expect(place("6")?.y).toBeGreaterThan((own?.y ?? 0) + (own?.height ?? 0));
  expect(place("2")).toMatchObject({ x: 400, y: 0 });
  expect((around?.x ?? 0) + (around?.width ?? 0)).toBeGreaterThan(right);
});

test("P1.15 a step with inputs outside the graph or with unknown types changes nothing", () => {
  const graph = drawn();
  expect(unfolded(graph, CATALOG, sampler(graph), STEP, "other:")).toBeNull();
  const unknown = { ...STEP, nodes: [{ ...STEP.nodes[0], type: "Unknown" }] };
  expect(unfolded(graph, CATALOG, sampler(graph), unknown, "s:")).toBeNull();
});
