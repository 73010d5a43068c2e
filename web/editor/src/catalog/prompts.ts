/** Chooses among the alternatives of prompts and leaves out comments, in the copy that is sent. */
import { setValue } from "../document/commands";
import { type Doc, nodesOf } from "../document/model";
import { withoutComments } from "./comments";
import { chosen } from "./weights";
import type { Catalog, NodeType, Widget } from "./catalog";
import { placedWidgets } from "./placed";

export function withChosenPrompts(graph: Doc, catalog: Catalog): Doc {
  return nodesOf(graph).reduce((next, node) => {
    const type = catalog.get(node.type);
    return placedWidgets(node, type).reduce((now, { widget, key, value }) => {
      if (type === undefined || typeof value !== "string" || !isPrompt(widget, type)) return now;
      const text = chosen(withoutComments(value));
      return text === value ? now : setValue(now, node.id, key, text, widget.name);
    }, next);
  }, graph);
}

/** A type says which of its texts are; without a word those of nodes that give a conditioning. */
function isPrompt({ lines, options }: Widget, { outputs }: NodeType): boolean {
  const told = options.dynamicPrompts;
  return typeof told === "boolean"
    ? told
    : lines && outputs.some(({ type }) => type === "CONDITIONING");
}
