/** Graphs that tests open. */
const socket = (name: string, link: number | null = null) => ({ name, type: "LATENT", link });
const given = (...links: number[]) => [{ name: "LATENT", type: "LATENT", links }];

function made(id: number, type: string, pos: readonly number[], rest: object) {
  const size = [220, 110];
  return { id, type, pos, size, flags: {}, mode: 0, properties: {}, inputs: [], ...rest };
}

/** Two latents that are added, and a node that hangs on nothing. */
export const ADDED = {
  last_node_id: 4,
  last_link_id: 2,
  version: 0.4,
  groups: [],
  config: {},
  extra: {},
  nodes: [
    made(1, "EmptyLatentImage", [0, 0], { outputs: given(1), widgets_values: [64, 64, 1] }),
    made(2, "EmptyLatentImage", [0, 320], { outputs: given(2), widgets_values: [96, 96, 1] }),
    made(3, "LatentAdd", [800, 160], {
      inputs: [socket("samples1", 1), socket("samples2", 2)],
      outputs: given(),
      widgets_values: [],
    }),
    made(4, "LatentMultiply", [400, 600], {
      inputs: [socket("samples")],
      outputs: given(),
      widgets_values: [0.5],
    }),
  ],
  links: [
    [1, 1, 0, 3, 0, "LATENT"],
    [2, 2, 0, 3, 1, "LATENT"],
  ],
};
