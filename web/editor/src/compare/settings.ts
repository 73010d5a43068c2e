/** Compares the settings of two documents. Pure. */
import type { Catalog } from "../catalog/catalog";
import { shownPlaced } from "../catalog/promoted";
import { type Doc, nodesOf } from "../document/model";
import { graphsOf, subgraphOf } from "../document/scope";

/** A setting with its values in both documents; null where the document does not have it. */
export interface Setting {
  readonly node: string;
  readonly name: string;
  readonly one: string | null;
  readonly other: string | null;
}

/** Returns all settings; those that differ come first. Nodes match by id and type. */
export function comparedSettings(one: Doc, other: Doc, catalog: Catalog): readonly Setting[] {
  const [first, second] = [settingsOf(one, catalog), settingsOf(other, catalog)];
  const all = [...new Map([...first, ...second])].map(([key, { node, name }]): Setting => {
    const [given, present] = [first.get(key)?.value, second.get(key)?.value];
    return { node, name, one: given ?? null, other: present ?? null };
  });
  const differs = (setting: Setting) => Number(setting.one !== setting.other);
  return all.sort((before, after) => differs(after) - differs(before));
}

function settingsOf(doc: Doc, catalog: Catalog) {
  const found = new Map<string, { node: string; name: string; value: string }>();
  for (const { path, graph } of graphsOf(doc))
    for (const node of nodesOf(graph)) {
      const id = [...path, node.id].join(":");
      const type = catalog.get(node.type);
      if (type?.isVirtual) continue;
      const title = node.title || type?.title || node.type;
      for (const { widget, value } of shownPlaced(node, subgraphOf(doc, node.type), catalog))
        if (!node.inputs.some((input) => input.widget === widget.name && input.link !== null))
          found.set(`${id} ${node.type} ${widget.name}`, {
            node: `${title} #${id}`,
            name: widget.name,
            value: String(value),
          });
    }
  return found;
}
