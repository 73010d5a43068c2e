/** Asks for a new name of a subgraph. */
import { useState } from "react";
import { rename, currentSubgraph } from "../commands/edits/subgraphs";
import { Modal } from "../ui/Modal";

export function RenameSubgraph({ onClose }: { readonly onClose: () => void }) {
  const [meant] = useState(currentSubgraph);
  const [name, setName] = useState(meant?.name ?? "");
  return (
    <Modal label="Rename the subgraph" onClose={onClose}>
      <form
        className="save"
        onSubmit={(event) => {
          event.preventDefault();
          onClose();
          if (meant !== null && name.trim() !== "") rename(meant.type, name.trim());
        }}
      >
        <label>
          Name of the subgraph and its untitled nodes
          <input
            autoFocus
            value={name}
            onFocus={(event) => event.target.select()}
            onChange={(event) => setName(event.target.value)}
          />
        </label>
        <button type="submit" className="prominent">
          Rename
        </button>
      </form>
    </Modal>
  );
}
