import "@xyflow/react/dist/style.css";
import { createRoot } from "react-dom/client";
import { App } from "./shell/App";
import "./style.css";

const root = document.getElementById("root");
if (root !== null) createRoot(root).render(<App />);
