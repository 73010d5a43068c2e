/** Appends words to a prompt. */
import { placedWidgets } from "../../catalog/placed";
import { setValue } from "../../document/commands";
import { nodesOf } from "../../document/model";
import { notify, useLive } from "../../state/live";
import { change, selection } from "./selection";

/** Appends to the first multi-line text of the selected node. */
export function appendToPrompt(words: string): void {
  const chosen = selection();
  const { catalog } = useLive.getState();
  const [found] = (chosen === null ? [] : nodesOf(chosen.graph)).flatMap((node) => {
    const placed = placedWidgets(node, catalog.get(node.type)).find(({ widget }) => widget.lines);
    return chosen?.nodes.has(node.id) && placed !== undefined ? [{ node, placed }] : [];
  });
  if (found === undefined) return notify("select a prompt node to add words to it");
  const { node, placed } = found;
  const before = String(placed.value).trimEnd();
  const text = before === "" ? words : `${before.replace(/,$/, "")}, ${words}`;
  change("add a trigger to a prompt", (graph) =>
    setValue(graph, node.id, placed.key, text, placed.widget.name),
  );
}
