/** Adds the preview nodes for an output to a copy of a graph, which is then run up to them. */
import { addNode } from "../../document/commands";
import { type Doc, type DocNode, linksOf, nodesOf } from "../../document/model";
import { boundariesOf } from "../../document/scope";
import type { Catalog } from "../catalog";
import { reached } from "../connections";
import { fittingInput, linked, type Output } from "../ends";
import { newNode } from "../placed";

/** The chain of node types that previews each output type. */
const PREVIEW_NODES: Readonly<Record<string, readonly string[]>> = {
  IMAGE: ["PreviewImage"],
  MASK: ["MaskPreview"],
  LATENT: ["VAEDecode", "PreviewImage"],
  STRING: ["PreviewAny"],
  INT: ["PreviewAny"],
  FLOAT: ["PreviewAny"],
  BOOLEAN: ["PreviewAny"],
};

/** An output that can be previewed. */
export interface PreviewableOutput extends Output {
  readonly label: string;
}

export function previewable({ id, outputs }: DocNode): readonly PreviewableOutput[] {
  return outputs.flatMap(({ label, type }, slot) =>
    PREVIEW_NODES[type] === undefined ? [] : [{ node: id, slot, type, label }],
  );
}

/**
 * Returns a graph that previews an output, with the id of the preview node; a message if this is
 * impossible.
 */
export function withPreview(
  graph: Doc,
  catalog: Catalog,
  output: Output,
): { readonly graph: Doc; readonly node: string } | string {
  let [next, from] = [graph, output];
  for (const name of PREVIEW_NODES[output.type] ?? []) {
    const type = catalog.get(name);
    if (type === undefined) return `the server has no ${name} to show ${output.type}`;
    next = addNode(next, newNode(type, 0, 0));
    const node = nodesOf(next).at(-1)?.id ?? "";
    const input = fittingInput(next, catalog, node, from);
    if (input === null) return `${name} does not take ${from.type}`;
    next = linked(next, from, input);
    if (type.sockets.some((socket) => socket.type === "VAE")) {
      const vae = vaeFor(graph, output.node);
      const end = vae && fittingInput(next, catalog, node, vae);
      if (!vae || !end) return "no VAE in this graph can decode the latent";
      next = linked(next, vae, end);
    }
    from = { node, slot: 0, type: type.outputs[0]?.type ?? "*" };
  }
  return { graph: next, node: from.node };
}

/** Finds a VAE that is used downstream of a node, else upstream, else anywhere in the graph. */
function vaeFor(graph: Doc, node: string): Output | null {
  const links = linksOf(graph).filter(({ type }) => type === "VAE");
  const [behind, before] = (["downstream", "upstream"] as const).map((way) =>
    reached(graph, new Set([node]), way),
  );
  const link =
    links.find(({ to }) => behind?.has(to)) ?? links.find(({ to }) => before?.has(to)) ?? links[0];
  if (link !== undefined) return { node: link.from, slot: link.fromSlot, type: "VAE" };
  const given = [
    ...nodesOf(graph).map(({ id, outputs }) => ({ id, slots: outputs })),
    ...boundariesOf(graph).filter(({ side }) => side === "inputs"),
  ];
  const found = given.flatMap(({ id, slots }) =>
    slots.flatMap(({ type }, slot) => (type === "VAE" ? [{ node: id, slot, type }] : [])),
  );
  return found[0] ?? null;
}
