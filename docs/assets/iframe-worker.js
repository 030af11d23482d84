/* The search works from disk, too: browsers start no worker from file://, so a hidden frame takes
   its place. The scripts of the theme look for the name IFrameWorker. */
(() => {
  if (location.protocol !== "file:") return;

  const FRAME = `<!doctype html><script>
    self.postMessage = data => parent.dispatchEvent(new MessageEvent("iframe-worker", {
      data: { frame: self.frameElement, data } }));
    self.importScripts = (...addresses) => addresses.reduce((done, address) => done.then(() =>
      new Promise((loaded, failed) => {
        const script = document.createElement("script");
        script.src = address; script.onload = loaded; script.onerror = failed;
        document.head.appendChild(script);
      })), Promise.resolve());
  </script>`;

  class IFrameWorker extends EventTarget {
    constructor(address) {
      super();
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.srcdoc = FRAME + `<script src="${new URL(address, location.href)}"></script>`;
      this.frame.onload = () => {
        this.isReady = true;
        this.waiting.splice(0).forEach(data => this.postMessage(data));
      };
      addEventListener("iframe-worker", event => {
        if (event.data.frame !== this.frame) return;
        const message = new MessageEvent("message", { data: event.data.data });
        this.dispatchEvent(message);
        if (this.onmessage) this.onmessage(message);
      });
      document.body.appendChild(this.frame);
    }

    postMessage(data) {
      if (!this.isReady) return void this.waiting.push(data);
      const view = this.frame.contentWindow;
      view.dispatchEvent(new view.MessageEvent("message", { data }));
    }

    terminate() {
      this.frame.remove();
    }
  }

  window.IFrameWorker = window.Worker = IFrameWorker;
})();
