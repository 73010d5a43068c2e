import { expect, test } from "vitest";
import type { JsonObject } from "../json";
import { catalogOf } from "./catalog";
import { difference } from "./difference";

const catalog = catalogOf({
  KSampler: {
    input: { required: { model: ["MODEL"], steps: ["INT", { default: 20 }] } },
    input_order: { required: ["model", "steps"] },
    output: ["LATENT"],
    output_name: ["LATENT"],
    display_name: "Sampler",
  },
  Load: { input: { required: {} }, output: ["MODEL"], output_name: ["MODEL"] },
});

const load = { id: 1, type: "Load", pos: [0, 0], outputs: [{ name: "MODEL", links: [1] }] };
const sampler = {
  id: 2,
  type: "KSampler",
  pos: [300, 0],
  inputs: [{ name: "model", type: "MODEL", link: 1 }],
  widgets_values: [20],
};
const before = { nodes: [load, sampler], links: [[1, 1, 0, 2, 0, "MODEL"]] };

test("equal versions have no difference", () => {
  expect(difference(before, structuredClone(before), catalog)).toEqual([]);
});

test("changed values, positions and links are described by name", () => {
  const after = {
    nodes: [load, { ...sampler, pos: [0, 9], mode: 4, widgets_values: [7] }],
    links: [],
  };
  expect(difference(before, after, catalog)).toEqual([
    {
      inside: "",
      id: "2",
      title: "Sampler #2",
      kind: "changed",
      lines: ["steps: 20 → 7", "runs → bypassed", "moved", "model: #1 MODEL → nothing"],
    },
  ]);
});

test("added and removed nodes are listed, also inside a subgraph and with a changed type", () => {
  const inner = (nodes: JsonObject[]) => ({ id: "s", name: "upscale", nodes, links: [] });
  const old: JsonObject = {
    nodes: [load],
    definitions: { subgraphs: [inner([{ id: 5, type: "Load" }])] },
  };
  const now: JsonObject = {
    nodes: [
      { ...load, type: "KSampler" },
      { id: 3, type: "Unknown", title: "mine" },
    ],
    definitions: { subgraphs: [inner([])] },
  };
  const told = difference(old, now, catalog).map(({ inside, title, kind }) => [
    inside,
    title,
    kind,
  ]);
  expect(told).toEqual([
    ["", "Sampler #1", "added"],
    ["", "mine #3", "added"],
    ["upscale", "Load #5", "removed"],
  ]);
});

test("a node of an unknown type shows its raw values", () => {
  const foreign = { id: 9, type: "Foreign", widgets_values: ["a"] };
  const told = difference(
    { nodes: [foreign] },
    { nodes: [{ ...foreign, widgets_values: ["b"] }] },
    catalog,
  );
  expect(told[0]?.lines).toEqual(['values: ["a"] → ["b"]']);
});
