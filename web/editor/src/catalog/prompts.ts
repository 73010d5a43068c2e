/** Chooses among the alternatives of prompts and removes comments in the copy that is sent. */
import { setValue } from "../document/commands";
import { type Doc, nodesOf } from "../document/model";
import { chosen, type Pick } from "../prompts/alternatives";
import { withoutComments } from "../prompts/comments";
import type { TextSize } from "../server/generated/messages";
import type { Catalog, Widget } from "./catalog";
import { placedWidgets } from "./placed";

export function withChosenPrompts(graph: Doc, catalog: Catalog, pick?: Pick): Doc {
  return nodesOf(graph).reduce((next, node) => {
    const type = catalog.get(node.type);
    return placedWidgets(node, type).reduce((now, { widget, key, value }) => {
      if (typeof value !== "string" || !isPrompt(widget)) return now;
      const text = chosen(withoutComments(value), pick);
      return text === value ? now : setValue(now, node.id, key, text, widget.name);
    }, next);
  }, graph);
}

/** Formats the token count of a text, with the names of the text encoders if there are several. */
export function sizeText(sizes: readonly TextSize[]): string {
  const words = ({ tokens, chunks, most }: TextSize): string => {
    if (chunks > 1) return `${tokens} tokens, ${chunks} chunks of ${most}`;
    if (most === 0) return `${tokens} ${tokens === 1 ? "token" : "tokens"}`;
    return tokens > most ? `${tokens} tokens, ${most} are read` : `${tokens} of ${most} tokens`;
  };
  const [first, ...others] = sizes;
  if (first === undefined) return "";
  if (others.length === 0) return words(first);
  return sizes.map((size) => `${size.encoder}: ${words(size)}`).join("; ");
}

/** Returns whether a widget is a prompt, as its type declares. */
function isPrompt({ options }: Widget): boolean {
  return options.dynamicPrompts === true;
}
