import { expect, test } from "vitest";
import { formOf, raiseInForm, toggleInForm } from "./form";
import type { Doc } from "./model";

const node = (id: number) => ({ id, type: "KSampler", pos: [0, 0], size: [200, 60] });
const GRAPH = { nodes: [node(5), node(6)], links: [], extra: { ds: 1 } } as unknown as Doc;
const STEPS = { node: "5", widget: "steps" };
const SEED = { node: "6", widget: "seed" };

test("P1.08 fields are added in order, moved up, and removed without a trace", () => {
  const both = toggleInForm(toggleInForm(GRAPH, STEPS), SEED);
  expect(formOf(both)).toEqual([STEPS, SEED]);
  expect(formOf(raiseInForm(both, SEED))).toEqual([SEED, STEPS]);
  expect(formOf(raiseInForm(both, STEPS))).toEqual([STEPS, SEED]);
  expect(formOf({ ...both, nodes: [node(6)] } as unknown as Doc)).toEqual([SEED]);
  expect(toggleInForm(toggleInForm(both, STEPS), SEED)).toEqual(GRAPH);
});
