/** Asks which output of the selected node to preview. */
import { useState } from "react";
import { showPreview, previewableOutputs } from "../commands/edits/outputPreview";
import { Picker } from "../ui/Picker";

export function PreviewOutput({ onClose }: { readonly onClose: () => void }) {
  const [query, setQuery] = useState("");
  const [outputs] = useState(previewableOutputs);
  return (
    <Picker
      label="Show an output"
      query={query}
      onQuery={setQuery}
      entries={outputs
        .filter(({ label }) => label.toLowerCase().includes(query.toLowerCase()))
        .map(({ slot, label, type }) => ({ id: String(slot), title: label, detail: type }))}
      onClose={onClose}
      onPick={(id) => {
        onClose();
        const output = outputs.find(({ slot }) => String(slot) === id);
        if (output !== undefined) void showPreview(output);
      }}
    />
  );
}
