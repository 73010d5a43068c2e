/** Hides or shows links by type. */
import { useState } from "react";
import { toggleType } from "../commands/edits/hiddenLinks";
import { hiddenOf } from "../document/hidden";
import { linksOf } from "../document/model";
import { graphOf, useActive } from "../state/documents";
import { Picker } from "../ui/Picker";

export function LinkTypes({ onClose }: { readonly onClose: () => void }) {
  const session = useActive();
  const [query, setQuery] = useState("");
  if (session === null) return null;
  const graph = graphOf(session);
  const hidden = hiddenOf(graph).types;
  const links = linksOf(graph);
  const types = [...new Set([...links.map(({ type }) => type), ...hidden])].sort();
  return (
    <Picker
      label="Hide links of a type"
      query={query}
      onQuery={setQuery}
      entries={types
        .filter((type) => type.toLowerCase().includes(query.toLowerCase()))
        .map((type) => {
          const count = links.filter((link) => link.type === type).length;
          const state = hidden.has(type) ? "hidden" : "drawn";
          return { id: type, title: type, detail: `${count}, ${state}` };
        })}
      onClose={onClose}
      onPick={(type, more) => {
        if (!more) onClose();
        toggleType(type);
      }}
    />
  );
}
