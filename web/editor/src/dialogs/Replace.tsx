/** Asks for the new type of the selected nodes; types that retain the most links come first. */
import { useMemo, useState } from "react";
import { keeps } from "../catalog/edits/replacement";
import { searched } from "../catalog/search";
import { replace } from "../commands/edits/links";
import { linksOf, nodesOf } from "../document/model";
import { useCanvas } from "../state/canvas";
import { graphOf, useActive } from "../state/documents";
import { useLive } from "../state/live";
import { useSettings } from "../state/settings";
import { Picker } from "../ui/Picker";

const MAX_SHOWN = 200;

export function Replace({ onClose }: { readonly onClose: () => void }) {
  const session = useActive();
  const catalog = useLive((live) => live.catalog);
  const used = useSettings((settings) => settings.used);
  const selected = useCanvas((canvas) => canvas.selected);
  const [query, setQuery] = useState("");
  const graph = session && graphOf(session);
  const chosen = useMemo(
    () => (graph === null ? [] : nodesOf(graph).filter(({ id }) => selected.has(id))),
    [graph, selected],
  );
  const types = useMemo(() => {
    if (graph === null) return [];
    const found = searched(catalog, query, used).map((type) => ({
      type,
      kept: keeps(graph, chosen, type),
    }));
    const ordered = query === "" ? found.sort((one, other) => other.kept - one.kept) : found;
    return ordered.slice(0, MAX_SHOWN);
  }, [catalog, query, used, graph, chosen]);
  const all =
    graph === null
      ? 0
      : chosen.reduce(
          (sum, { id }) =>
            sum + linksOf(graph).filter(({ from, to }) => from === id || to === id).length,
          0,
        );
  return (
    <Picker
      label="Change the node type to"
      query={query}
      onQuery={setQuery}
      entries={types.map(({ type, kept }) => ({
        id: type.name,
        title: type.title,
        detail: `keeps ${kept} of ${all} links`,
        below: `${type.category} · ${type.pack}`,
        help: type.description,
      }))}
      onClose={onClose}
      onPick={(name) => {
        onClose();
        replace(name);
      }}
    />
  );
}
