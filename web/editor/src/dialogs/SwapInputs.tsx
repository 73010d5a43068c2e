/** Asks which two inputs of the selected node to swap. */
import { useState } from "react";
import { swap, swappablePairs } from "../commands/edits/links";
import { Picker } from "../ui/Picker";

export function SwapInputs({ onClose }: { readonly onClose: () => void }) {
  const [query, setQuery] = useState("");
  const [pairs] = useState(swappablePairs);
  const words = query.toLowerCase();
  return (
    <Picker
      label="Swap two inputs"
      query={query}
      onQuery={setQuery}
      entries={pairs.flatMap(({ title }, number) =>
        title.toLowerCase().includes(words) ? [{ id: String(number), title }] : [],
      )}
      onClose={onClose}
      onPick={(id) => {
        onClose();
        const chosen = pairs[Number(id)];
        if (chosen !== undefined) swap(chosen);
      }}
    />
  );
}
