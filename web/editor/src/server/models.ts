/** Asks which models there are. */
import type { Kind } from "../catalog/completing";
import { textsOf } from "../json";
import { asked } from "./client";

/** Names as prompts say them, without endings. */
export async function namesOf(kind: Kind): Promise<readonly string[]> {
  if (kind === "embeddings") return textsOf(await asked("embeddings"));
  return textsOf(await asked(`models/${kind}`)).map((name) => name.replace(/\.\w+$/, ""));
}
