import { useEffect, useRef, useState } from "react";
import { fetched } from "../server/client";
import { ACTIONS } from "./actions";
import { tell } from "./live";
import { Picker } from "./Picker";
import { usePage } from "./page";
import { openFiles, openTemplate } from "./running";
import { useTemplates } from "./Start";

const close = () => usePage.setState({ dialog: null });

export function Dialogs() {
  const dialog = usePage((page) => page.dialog);
  const picture = usePage((page) => page.picture);
  return (
    <>
      {dialog === "palette" && <Palette />}
      {dialog === "templates" && <Templates />}
      {dialog === "keys" && <Keys />}
      {picture !== null && <Large address={picture} />}
    </>
  );
}

function Palette() {
  const [query, setQuery] = useState("");
  const words = query.toLowerCase();
  const found = ACTIONS.filter(({ title }) => title.toLowerCase().includes(words));
  return (
    <Picker
      label="All actions"
      query={query}
      onQuery={setQuery}
      entries={found.map(({ id, title, keys }) => ({ id, title, detail: keys.join(", ") }))}
      onClose={close}
      onPick={(id) => {
        close();
        ACTIONS.find((action) => action.id === id)?.act();
      }}
    />
  );
}

function Templates() {
  const [query, setQuery] = useState("");
  const words = query.toLowerCase();
  const found = useTemplates().filter(({ title, description }) =>
    `${title} ${description}`.toLowerCase().includes(words),
  );
  return (
    <Picker
      label="Templates"
      query={query}
      onQuery={setQuery}
      entries={found.map(({ name, title, description }) => ({
        id: name,
        title,
        detail: description,
      }))}
      onClose={close}
      onPick={(name) => {
        close();
        void openTemplate(name);
      }}
    />
  );
}

function Keys() {
  return (
    <Modal label="Shortcuts" onClose={close}>
      <table>
        <tbody>
          {ACTIONS.map(({ id, title, keys }) => (
            <tr key={id}>
              <th scope="row">{title}</th>
              <td>
                {keys.map((key) => (
                  <kbd key={key}>{key}</kbd>
                ))}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </Modal>
  );
}

function Large({ address }: { readonly address: string }) {
  return (
    <Modal label="Picture" onClose={() => usePage.setState({ picture: null })}>
      <img className="large" src={address} alt="result" />
      <p>
        <button
          type="button"
          onClick={() => {
            usePage.setState({ picture: null });
            fetched(address).then((file) => openFiles([file]), tell);
          }}
        >
          Open its workflow
        </button>{" "}
        <a href={address} download>
          Download
        </a>
      </p>
    </Modal>
  );
}

function Modal({
  label,
  onClose,
  children,
}: {
  readonly label: string;
  readonly onClose: () => void;
  readonly children: React.ReactNode;
}) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog
      ref={dialog}
      className="modal"
      aria-label={label}
      onClose={onClose}
      onClick={(event) => event.target === dialog.current && onClose()}
    >
      <h2>{label}</h2>
      {children}
    </dialog>
  );
}
