import { expect, test } from "vitest";
import { addNode, emptyDocument } from "../../document/commands";
import { connect } from "../../document/links";
import { type Doc, linksOf, nodesOf } from "../../document/model";
import { catalogOf } from "../catalog";
import { newNode } from "../placed";
import { previewable, withPreview } from "./outputPreview";

const CATALOG = catalogOf({
  Load: { output: ["MODEL", "VAE"] },
  Sample: { input: { required: { model: ["MODEL"] } }, output: ["LATENT"] },
  VAEDecode: { input: { required: { samples: ["LATENT"], vae: ["VAE"] } }, output: ["IMAGE"] },
  PreviewImage: { input: { required: { images: ["IMAGE"] } }, output_node: true },
});

function built(...types: readonly string[]): Doc {
  return types.reduce<Doc>((graph, name) => {
    const type = CATALOG.get(name);
    return type === undefined ? graph : addNode(graph, newNode(type, 0, 0));
  }, emptyDocument());
}

test("P1.06 a latent is decoded by the VAE used downstream, else by any, and then previewed", () => {
  const graph = built("Load", "Load", "Sample", "VAEDecode");
  const [, , sample] = nodesOf(graph);
  const used = connect(
    connect(graph, { node: "3", slot: 0 }, { node: "4", slot: 0 }, "LATENT"),
    { node: "2", slot: 1 },
    { node: "4", slot: 1 },
    "VAE",
  );
  const [latent] = sample === undefined ? [] : previewable(sample);
  if (latent === undefined) throw new Error("nothing to show");
  expect(latent).toEqual({ node: "3", slot: 0, type: "LATENT", label: "LATENT" });
  const vaeOf = (before: Doc) => {
    const made = withPreview(before, CATALOG, latent);
    if (typeof made === "string") return made;
    expect(nodesOf(made.graph).find(({ id }) => id === made.node)?.type).toBe("PreviewImage");
    expect(nodesOf(made.graph)).toHaveLength(nodesOf(before).length + 2);
    return linksOf(made.graph).findLast(({ type }) => type === "VAE")?.from;
  };
  expect(vaeOf(used)).toBe("2");
  expect(vaeOf(graph)).toBe("1");
  expect(vaeOf(built("Sample", "Sample", "Sample"))).toMatch(/no VAE/);
});

test("P1.06 unsupported outputs are not offered, and missing preview nodes are reported", () => {
  const [load] = nodesOf(built("Load"));
  expect(load && previewable(load)).toEqual([]);
  const mask = { node: "1", slot: 0, type: "MASK" };
  expect(withPreview(built("Load"), CATALOG, mask)).toMatch(/no MaskPreview/);
});
