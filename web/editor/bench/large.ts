/** A large workflow: 125 pictures painted twice, in one graph of 1,000 nodes and 1,625 links. */
import type { APIRequestContext } from "@playwright/test";

const PICTURES = 125;

function picture(first: number): Record<string, unknown> {
  const id = (place: number) => String(first + place);
  const sampler = (latent: [string, number], seed: number) => ({
    class_type: "KSampler",
    inputs: {
      model: [id(0), 0],
      positive: [id(1), 0],
      negative: [id(2), 0],
      latent_image: latent,
      seed,
      steps: 20,
      cfg: 7,
      sampler_name: "euler",
      scheduler: "normal",
      denoise: 1,
    },
  });
  const text = (said: string) => ({
    class_type: "CLIPTextEncode",
    inputs: { clip: [id(0), 1], text: said },
  });
  return {
    [id(0)]: { class_type: "CheckpointLoaderSimple", inputs: { ckpt_name: "katz-mini" } },
    [id(1)]: text("a large red star at the top left on grass"),
    [id(2)]: text(""),
    [id(3)]: { class_type: "EmptyLatentImage", inputs: { width: 64, height: 64, batch_size: 1 } },
    [id(4)]: sampler([id(3), 0], first),
    [id(5)]: sampler([id(4), 0], first + 1),
    [id(6)]: { class_type: "VAEDecode", inputs: { samples: [id(5), 0], vae: [id(0), 2] } },
    [id(7)]: { class_type: "PreviewImage", inputs: { images: [id(6), 0] } },
  };
}

/** Pictures in a square, the nodes of each in two rows. */
function placeOf(number: number): [number, number] {
  const [picture, place] = [Math.floor(number / 8), number % 8];
  const [column, row] = [picture % 11, Math.floor(picture / 11)];
  return [1600 * column + 380 * (place % 4), 1100 * row + 480 * Math.floor(place / 4)];
}

/** The document that editors open, as text. */
export async function large(server: APIRequestContext): Promise<string> {
  const graph = Object.assign(
    {},
    ...Array.from({ length: PICTURES }, (_, number) => picture(1 + 8 * number)),
  );
  return opened(server, graph);
}

/** A graph of one node. */
export const ONE = {
  1: { class_type: "EmptyLatentImage", inputs: { width: 64, height: 64, batch_size: 1 } },
};

/** What editors open of a prompt. */
export async function opened(server: APIRequestContext, graph: object): Promise<string> {
  const answer = await server.post("/katz/open", { data: graph });
  const { document } = await answer.json();
  for (const node of document.nodes) node.pos = placeOf(Number(node.id) - 1);
  return JSON.stringify(document);
}
