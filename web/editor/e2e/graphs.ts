/** Graphs that tests open. */
const socket = (name: string, link: number | null = null) => ({ name, type: "LATENT", link });
const given = (...links: number[]) => [{ name: "LATENT", type: "LATENT", links }];

function made(id: number, type: string, pos: readonly number[], rest: object) {
  const size = [220, 110];
  return { id, type, pos, size, flags: {}, mode: 0, properties: {}, inputs: [], ...rest };
}

/** Two latents that are added, and an unlinked node. */
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

/** A subgraph that encodes a text, used once. */
const SUBGRAPH = "11111111-2222-4333-8444-555555555555";
export const NESTED = {
  last_node_id: 4,
  last_link_id: 3,
  version: 0.4,
  groups: [],
  config: {},
  extra: {},
  nodes: [
    {
      id: 1,
      type: "CheckpointLoaderSimple",
      pos: [0, 0],
      size: [260, 100],
      flags: {},
      mode: 0,
      inputs: [],
      outputs: [
        { name: "MODEL", type: "MODEL", links: [] },
        { name: "CLIP", type: "CLIP", links: [1] },
        { name: "VAE", type: "VAE", links: [] },
      ],
      properties: {},
      widgets_values: ["katz-mini"],
    },
    {
      id: 2,
      type: SUBGRAPH,
      pos: [340, 0],
      size: [260, 100],
      flags: {},
      mode: 0,
      inputs: [
        { name: "clip", type: "CLIP", link: 1 },
        { name: "text", type: "STRING", link: null, widget: { name: "text" } },
      ],
      outputs: [{ name: "CONDITIONING", type: "CONDITIONING", links: [] }],
      properties: {},
      widgets_values: ["a red star"],
    },
  ],
  links: [[1, 1, 1, 2, 0, "CLIP"]],
  definitions: {
    subgraphs: [
      {
        id: SUBGRAPH,
        name: "Words",
        version: 1,
        state: { lastNodeId: 9, lastLinkId: 9, lastGroupId: 0, lastRerouteId: 0 },
        inputNode: { id: -10, bounding: [0, 0, 120, 80] },
        outputNode: { id: -20, bounding: [700, 0, 120, 60] },
        inputs: [
          { id: "a", name: "clip", type: "CLIP", linkIds: [7] },
          { id: "b", name: "text", type: "STRING", linkIds: [8] },
        ],
        outputs: [{ id: "c", name: "CONDITIONING", type: "CONDITIONING", linkIds: [9] }],
        widgets: [],
        nodes: [
          {
            id: 9,
            type: "CLIPTextEncode",
            pos: [250, 0],
            size: [300, 120],
            flags: {},
            mode: 0,
            inputs: [
              { name: "clip", type: "CLIP", link: 7 },
              { name: "text", type: "STRING", link: 8, widget: { name: "text" } },
            ],
            outputs: [{ name: "CONDITIONING", type: "CONDITIONING", links: [9] }],
            properties: {},
            widgets_values: [""],
          },
        ],
        links: [
          { id: 7, origin_id: -10, origin_slot: 0, target_id: 9, target_slot: 0, type: "CLIP" },
          { id: 8, origin_id: -10, origin_slot: 1, target_id: 9, target_slot: 1, type: "STRING" },
          {
            id: 9,
            origin_id: 9,
            origin_slot: 0,
            target_id: -20,
            target_slot: 0,
            type: "CONDITIONING",
          },
        ],
        groups: [],
      },
    ],
  },
};
