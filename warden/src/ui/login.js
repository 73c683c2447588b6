// The login form keeps the rest of the address, so that a shared view opens, and takes a token out of it.
{
  const given = new URLSearchParams(location.search);
  given.delete("token");
  const view = given.size ? `?${given}` : "";
  const form = document.querySelector("form");
  const refused = document.querySelector("#refused");
  form.action = `/login${view}`;
  history.replaceState(null, "", `/${view}`);

  // Whoever follows a link of another site (a mail, a chat) comes without the session's cookie; a request of this page has it.
  if (refused.hidden) {
    fetch("/machines", { cache: "no-store", signal: AbortSignal.timeout(20000) }).then(
      (answer) => answer.ok && location.replace(`/${view}`),
      () => {}, // The form is there.
    );
  }

  // The page sends no referrer, so a plain form would name no origin either, and over plain HTTP to another machine a
  // browser does not say in another way that the form is our own. A request of a script names its origin.
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const body = new URLSearchParams(new FormData(form));
    let why = "No connection. Is the program running?";
    try {
      const response = await fetch(form.action, {
        method: "POST", body, redirect: "manual", cache: "no-store",
        headers: { accept: "application/json" }, signal: AbortSignal.timeout(20000),
      });
      // What a login leads to is not followed here: that is a redirect that the script cannot look into.
      if (response.type === "opaqueredirect") return location.replace(`/${view}`);
      const answer = await response.json().catch(() => null);
      why = answer?.error ?? `It answered ${response.status}.`;
    } catch {
      // What `why` says already.
    }
    refused.textContent = why;
    refused.hidden = false;
    form.reset();
    document.querySelector("#token").focus();
  });
}
