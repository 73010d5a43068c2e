import "@xyflow/react/dist/style.css";
import { createRoot } from "react-dom/client";
import { askedFor } from "./jobPage/links";
import { App } from "./shell/App";
import { lazily } from "./shell/lazily";
import "./style.css";

const root = document.getElementById("root");
const JobPage = lazily(() => import("./jobPage/JobPage").then((part) => part.JobPage));
const job = askedFor("job");
if (root !== null) createRoot(root).render(job === null ? <App /> : <JobPage id={job} />);
