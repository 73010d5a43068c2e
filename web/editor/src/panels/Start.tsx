/** Shows templates on an empty canvas. */
import { useEffect, useState } from "react";
import { openTemplate } from "../commands/run";
import { type Template, templates } from "../server/client";
import { notify } from "../state/live";
import { Drafts } from "./Drafts";

export function useTemplates(): readonly Template[] {
  const [found, setFound] = useState<readonly Template[]>([]);
  useEffect(() => {
    templates().then(setFound, notify);
  }, []);
  return found;
}

export function Start() {
  const found = useTemplates();
  return (
    <section className="start" aria-label="templates">
      <h1>Begin with a template</h1>
      <p>
        Or drop a workflow or a picture that carries one, or double-click the canvas to add a node.
      </p>
      <Drafts most={3} />
      <ul>
        {found.map((template) => (
          <li key={template.name}>
            <button type="button" onClick={() => void openTemplate(template.name)}>
              <img src={template.picture} alt="" loading="lazy" />
              <strong>{template.title}</strong>
              <small>{template.description}</small>
            </button>
          </li>
        ))}
      </ul>
    </section>
  );
}
