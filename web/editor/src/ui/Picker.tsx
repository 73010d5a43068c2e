/** Shows a search field and a list, for mouse and keyboard. */
import { useEffect, useRef, useState } from "react";
import { Frame } from "./Modal";

export interface Entry {
  readonly id: string;
  readonly title: string;
  readonly detail?: string;
  readonly help?: string;
  /** The second line. */
  readonly below?: string;
  readonly colour?: string;
}

export function Picker({
  label,
  query,
  onQuery,
  entries,
  onPick,
  onBack,
  onClose,
}: {
  readonly label: string;
  readonly query: string;
  readonly onQuery: (query: string) => void;
  readonly entries: readonly Entry[];
  /** `more`: the dialog stays open for another choice (Shift+Enter, Shift+click). */
  readonly onPick: (id: string, more: boolean) => void;
  /** Called by Backspace in an empty field. */
  readonly onBack?: () => void;
  readonly onClose: () => void;
}) {
  const list = useRef<HTMLDivElement>(null);
  const [place, setPlace] = useState(0);
  const at = Math.min(place, entries.length - 1);
  useEffect(() => {
    list.current?.querySelector('[aria-selected="true"]')?.scrollIntoView({ block: "nearest" });
  });
  return (
    <Frame
      className="picker"
      label={label}
      onClose={onClose}
      onKeyDown={(event) => {
        const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 8, PageUp: -8 }[event.key];
        if (step !== undefined) {
          event.preventDefault();
          setPlace(Math.max(0, Math.min(entries.length - 1, at + step)));
        }
        const chosen = entries[at];
        if (event.key === "Enter" && chosen !== undefined) {
          event.preventDefault();
          onPick(chosen.id, event.shiftKey);
        }
        if (event.key === "Escape") {
          event.preventDefault(); // else Escape only clears the field
          onClose();
        }
        if (event.key === "Backspace" && query === "") onBack?.();
      }}
    >
      <input
        type="search"
        role="combobox"
        aria-expanded="true"
        aria-controls="picker-list"
        aria-activedescendant={entries[at] && `picker-${at}`}
        aria-label={label}
        placeholder={label}
        value={query}
        onChange={(event) => {
          onQuery(event.target.value);
          setPlace(0);
        }}
      />
      <div ref={list} id="picker-list" role="listbox" aria-label={label} tabIndex={-1}>
        {entries.map((entry, number) => (
          // the search field keeps the focus
          <div
            key={entry.id}
            id={`picker-${number}`}
            role="option"
            tabIndex={-1}
            aria-selected={number === at}
            title={entry.help}
            onClick={(event) => onPick(entry.id, event.shiftKey)}
          >
            {entry.colour !== undefined && (
              <i className="colour" style={{ background: entry.colour }} />
            )}
            <span>
              {entry.title}
              {entry.below && <em>{entry.below}</em>}
            </span>
            {entry.detail && <small>{entry.detail}</small>}
          </div>
        ))}
        {entries.length === 0 && <p className="empty">nothing found</p>}
      </div>
    </Frame>
  );
}
