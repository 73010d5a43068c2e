/** Asks for a file name, and how to resolve a conflict with another page's changes. */
import { useState } from "react";
import { saveAs, store, takeTheirs } from "../commands/save";
import type { Conflict } from "../server/workflows";
import { useActive } from "../state/documents";
import { usePage } from "../state/page";
import { Modal } from "../ui/Modal";

export function SaveAs() {
  const session = useActive();
  const [name, setName] = useState(session?.name ?? "workflow");
  const close = () => usePage.setState({ dialog: null });
  return (
    <Modal label="Save on the server" onClose={close}>
      <form
        className="save"
        onSubmit={(event) => {
          event.preventDefault();
          close();
          if (name.trim() !== "") void saveAs(name.trim());
        }}
      >
        <label>
          Name; a / makes a folder
          <input
            autoFocus
            value={name}
            onFocus={(event) => event.target.select()}
            onChange={(event) => setName(event.target.value)}
          />
        </label>
        <button type="submit" className="prominent">
          Save
        </button>
      </form>
    </Modal>
  );
}

export function ConflictChoice({ conflict }: { readonly conflict: Conflict }) {
  const { theirs, saved } = conflict;
  const close = () => usePage.setState({ conflict: null });
  const choose = (act: () => void) => () => {
    close();
    act();
  };
  return (
    <Modal label="The file has changed" onClose={close}>
      <p>
        {theirs.path} was saved by another page
        {saved === "" ? "" : ` at ${new Date(saved).toLocaleTimeString()}`}. No version is
        overwritten unless you choose to.
      </p>
      <p className="choices">
        <button
          type="button"
          className="prominent"
          onClick={choose(() => usePage.setState({ dialog: "save-as" }))}
        >
          Keep both: save under another name
        </button>
        <button type="button" onClick={choose(() => void takeTheirs(theirs.path))}>
          Use the server's version
        </button>
        <button type="button" onClick={choose(() => void store(theirs.path, theirs))}>
          Replace the server's version
        </button>
      </p>
    </Modal>
  );
}
