/** Lists all node types by category or by pack, with their help; a click or a drag places one. */
import { useState } from "react";
import { type NodeType, socketOf } from "../catalog/catalog";
import { grouped, searched } from "../catalog/search";
import { NODE_TYPE, place } from "../shell/adding";
import { useSettings } from "../shell/settings";
import { useLive } from "../shell/live";
import { Filter } from "./Filter";

export function NodeLibrary() {
  const catalog = useLive((live) => live.catalog);
  const [query, setQuery] = useState("");
  const [help, setHelp] = useState<NodeType | null>(null);
  const [by, setBy] = useState<"category" | "pack">("category");
  const { favourites, toggle } = useSettings();
  const found = searched(catalog, query);
  const row = (type: NodeType) => (
    <li key={type.name}>
      <button
        type="button"
        className="name"
        draggable
        onDragStart={(event) => event.dataTransfer.setData(NODE_TYPE, type.name)}
        onClick={() => place(type.name)}
      >
        {type.title}
      </button>
      <button
        type="button"
        className="plain"
        aria-label={`favourite ${type.title}`}
        aria-pressed={favourites.includes(type.name)}
        onClick={() => toggle(type.name)}
      >
        {favourites.includes(type.name) ? "★" : "☆"}
      </button>
      <button
        type="button"
        className="plain"
        aria-label={`help for ${type.title}`}
        aria-expanded={help === type}
        onClick={() => setHelp(help === type ? null : type)}
      >
        ?
      </button>
      {help === type && <Help type={type} />}
    </li>
  );
  const liked = favourites.flatMap((name) => catalog.get(name) ?? []);
  return (
    <aside className="side files library" aria-label="node types">
      <h2>Node types</h2>
      <Filter label="filter node types" value={query} onValue={setQuery} />
      <label>
        by{" "}
        <select
          aria-label="list by"
          value={by}
          onChange={(event) => setBy(event.target.value === "pack" ? "pack" : "category")}
        >
          <option>category</option>
          <option>pack</option>
        </select>
      </label>
      {query !== "" ? (
        <ul>{found.map(row)}</ul>
      ) : (
        <>
          {liked.length > 0 && (
            <details open>
              <summary>favourites</summary>
              <ul>{liked.map(row)}</ul>
            </details>
          )}
          {[...grouped(found, by)].map(([group, types]) => (
            <details key={`${by} ${group}`}>
              <summary>
                {group} <small>{types.length}</small>
              </summary>
              <ul>{types.map(row)}</ul>
            </details>
          ))}
        </>
      )}
    </aside>
  );
}

function Help({ type }: { readonly type: NodeType }) {
  return (
    <div className="help">
      <p>{type.description || "Its author says nothing of it."}</p>
      <dl>
        {type.sockets.map(({ name, type: socket, optional }) => (
          <Line key={name} name={name} what={optional ? `${socket}, optional` : socket} />
        ))}
        {type.widgets.map((widget) => (
          <Line
            key={widget.name}
            name={widget.name}
            what={
              typeof widget.options.tooltip === "string" ? widget.options.tooltip : socketOf(widget)
            }
          />
        ))}
        {type.outputs.map(({ name, type: socket }) => (
          <Line key={`out ${name}`} name={`→ ${name}`} what={socket} />
        ))}
      </dl>
    </div>
  );
}

function Line({ name, what }: { readonly name: string; readonly what: string }) {
  return (
    <>
      <dt>{name}</dt>
      <dd>{what}</dd>
    </>
  );
}
