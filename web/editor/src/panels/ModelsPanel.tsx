/**
 * Lists the server's models with their images and metadata. A drag or click adds a node that loads
 * one.
 */
import { useEffect, useState } from "react";
import { type Loader, loadersOf, triggersOf } from "../catalog/loaders";
import { CHOICE, NODE_TYPE, placeChosen } from "../commands/addNode";
import { appendToPrompt } from "../commands/edits/prompts";
import { listedModels, type Model, type ModelKind, modelKinds, notesOf } from "../server/models";
import { notify, useLive } from "../state/live";
import { Filter } from "../ui/Filter";
import "./models.css";

const MAX_SHOWN = 200;

export function ModelsPanel() {
  const catalog = useLive((live) => live.catalog);
  const [kinds, setKinds] = useState<readonly ModelKind[]>([]);
  const [kind, setKind] = useState("checkpoints");
  const [models, setModels] = useState<readonly Model[]>([]);
  const [words, setWords] = useState("");
  const [open, setOpen] = useState("");
  useEffect(() => void modelKinds().then(setKinds, notify), []);
  useEffect(() => {
    let current = true;
    listedModels(kind).then((found) => current && setModels(found), notify);
    return () => void (current = false);
  }, [kind, catalog]);
  const folders = kinds.find(({ name }) => name === kind)?.folders ?? [];
  const loaders = loadersOf(
    catalog,
    models.map(({ name }) => name),
    [kind, ...folders],
  );
  const text = words.toLowerCase();
  const shown = models.filter(({ name }) => name.toLowerCase().includes(text));
  return (
    <aside className="side models" aria-label="models">
      <h2>Models</h2>
      <Filter label="filter models" value={words} onValue={setWords} />
      <select aria-label="kind" value={kind} onChange={(event) => setKind(event.target.value)}>
        {kinds.map(({ name }) => (
          <option key={name}>{name}</option>
        ))}
      </select>
      {shown.length === 0 && <p className="empty">no models of this type</p>}
      <ul>
        {shown.slice(0, MAX_SHOWN).map((model) => (
          <li key={model.name}>
            <button
              type="button"
              className="name"
              title={loaders[0] && `add ${loaders[0].type.title}`}
              disabled={loaders[0] === undefined}
              draggable={loaders[0] !== undefined}
              onDragStart={({ dataTransfer }) => {
                dataTransfer.setData(NODE_TYPE, loaders[0]?.type.name ?? "");
                dataTransfer.setData(CHOICE, model.name);
              }}
              onClick={() => loaders[0] && placeChosen(loaders[0].type.name, model.name)}
            >
              {model.picture !== "" && (
                <img draggable={false} src={model.picture} alt="" loading="lazy" />
              )}
              <span>{model.name}</span>
            </button>
            <button
              type="button"
              className="plain"
              aria-label={`notes of ${model.name}`}
              aria-expanded={open === model.name}
              onClick={() => setOpen(open === model.name ? "" : model.name)}
            >
              ?
            </button>
            {open === model.name && <Notes kind={kind} model={model} loaders={loaders} />}
          </li>
        ))}
      </ul>
      {shown.length > MAX_SHOWN && <p className="remark">and {shown.length - MAX_SHOWN} more</p>}
    </aside>
  );
}

function Notes({
  kind,
  model: { name, bytes },
  loaders,
}: {
  readonly kind: string;
  readonly model: Model;
  readonly loaders: readonly Loader[];
}) {
  const [notes, setNotes] = useState<Readonly<Record<string, string>> | null>(null);
  useEffect(() => void notesOf(kind, name).then(setNotes), [kind, name]);
  if (notes === null) return null;
  const triggers = triggersOf(notes);
  return (
    <section aria-label={`notes of ${name}`}>
      <p>
        {(bytes / 1e6).toFixed(1)} MB
        {loaders.map(({ type }) => (
          <button type="button" key={type.name} onClick={() => placeChosen(type.name, name)}>
            {type.title}
          </button>
        ))}
      </p>
      {triggers.length > 0 && (
        <p role="group" aria-label="triggers: a click adds one to the selected prompt">
          {triggers.map((trigger) => (
            <button
              type="button"
              key={trigger}
              draggable
              onDragStart={({ dataTransfer }) => dataTransfer.setData("text/plain", trigger)}
              onClick={() => appendToPrompt(trigger)}
            >
              {trigger}
            </button>
          ))}
        </p>
      )}
      {Object.keys(notes).length === 0 && <p className="remark">No metadata.</p>}
      <dl>
        {Object.entries(notes).map(([key, value]) => (
          <div key={key}>
            <dt>{key}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
    </section>
  );
}
