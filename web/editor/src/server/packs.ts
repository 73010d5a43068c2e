/** Lists the node packs found by the server, and their problems. */
import { numberFrom, textOf, textsOf } from "../json";
import { asked } from "./client";
import type * as messages from "./generated/messages";
import { messageFields, readMessages } from "./messageFields";

export interface Pack {
  readonly name: string;
  readonly nodes: number;
  /** Whether the pack has scripts for ComfyUI's front end, which are not run. */
  readonly scripts: boolean;
  /** Why the pack, or nodes of it, were left out. */
  readonly problems: readonly string[];
}

/** Returns all packs; those with problems come first. */
export async function listedPacks(): Promise<readonly Pack[]> {
  const found = messageFields<messages.PackList>(await asked("katz/packs"));
  const packs = readMessages<messages.ListedPack, Pack>(found.packs, (pack) => ({
    name: textOf(pack.name),
    nodes: numberFrom(pack.nodes),
    scripts: pack.scripts === true,
    problems: textsOf(pack.problems),
  }));
  return [...packs].sort(
    (one, other) =>
      Number(other.problems.length > 0) - Number(one.problems.length > 0) ||
      one.name.localeCompare(other.name),
  );
}
