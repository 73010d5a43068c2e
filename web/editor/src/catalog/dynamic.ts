/** Sets widgets. A dynamic choice replaces the inputs of its old value by those of the new one. */
import { changeNode, setValue } from "../document/commands";
import { type Doc, type DocNode, nodesOf } from "../document/model";
import { isObject, type Json } from "../json";
import type { Catalog } from "./catalog";
import { chosenValues, type Placed, placedWidgets } from "./placed";

/** Sets the value of a node's widget. */
export function setWidget(
  graph: Doc,
  catalog: Catalog,
  id: string,
  { widget, key }: Placed,
  value: Json,
): Doc {
  return Object.keys(widget.further).length > 0
    ? setChoice(graph, catalog, id, widget.name, value)
    : setValue(graph, id, key, value, widget.name);
}

/**
 * Sets the choice `name` of a node. The file's list of inputs stays, because links refer to them by
 * index; inputs of hidden widgets are not drawn.
 */
export function setChoice(
  graph: Doc,
  catalog: Catalog,
  id: string,
  name: string,
  value: Json,
): Doc {
  const node = nodesOf(graph).find((one) => one.id === id);
  const type = catalog.get(node?.type ?? "");
  if (node === undefined || type === undefined) return graph;
  const values = chosenValues(node, type, name, value);
  const then: DocNode = { ...node, values };
  return changeNode(graph, id, (raw) => {
    const named = raw.widgets_values_named;
    if (!isObject(named)) return { ...raw, widgets_values: values };
    const others = Object.entries(named).filter(([held]) => !held.startsWith(`${name}.`));
    const shown = placedWidgets(then, type)
      .filter(({ widget }) => widget.name === name || widget.name.startsWith(`${name}.`))
      .map(({ widget, value: held }) => [widget.name, held]);
    const all = Object.fromEntries([...others, ...shown]);
    return { ...raw, widgets_values: values, widgets_values_named: all };
  });
}
