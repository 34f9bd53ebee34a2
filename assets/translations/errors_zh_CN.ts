<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE TS>
<TS version="2.1" language="zh_CN" sourcelanguage="en">
<context>
    <name>Errors</name>
    <message>
        <source>A TensorRT-LLM engine runs on an NVIDIA GPU only.</source>
        <translation>TensorRT-LLM 引擎只能在 NVIDIA GPU 上运行。</translation>
    </message>
    <message>
        <source>A conversation with a server needs the package websockets, which is not installed.</source>
        <translation>与服务器对话需要 websockets 软件包，但它没有安装。</translation>
    </message>
    <message>
        <source>A global hotkey needs the package python-xlib, which is not installed.</source>
        <translation>全局热键需要 python-xlib 软件包，但尚未安装。</translation>
    </message>
    <message>
        <source>A global hotkey on Wayland needs the package jeepney, which is not installed.</source>
        <translation>Wayland 上的全局热键需要软件包 jeepney，但它没有安装。</translation>
    </message>
    <message>
        <source>A server cannot continue a conversation that was held with a model on this computer.</source>
        <translation>服务器无法继续与本机模型进行的对话。</translation>
    </message>
    <message>
        <source>A voice cannot be chosen: kaldi-native-fbank is missing.</source>
        <translation>无法选择声音：缺少 kaldi-native-fbank。</translation>
    </message>
    <message>
        <source>All {capacity} conversations that this server can hold ({limit}) are in progress.</source>
        <translation>此服务器可容纳的 {capacity} 个对话（{limit}）都在进行中。</translation>
    </message>
    <message>
        <source>Another program uses the hotkey {name}.</source>
        <translation>热键 {name} 已被另一个程序占用。</translation>
    </message>
    <message>
        <source>Ask again; if it happens again, check the log of the server.</source>
        <translation>请再问一次；若再次发生，请查看服务器的日志。</translation>
    </message>
    <message>
        <source>Ask again; if it happens again, see the log file for details.</source>
        <translation>请再问一次；如果再次发生，请查看日志文件。</translation>
    </message>
    <message>
        <source>Ask in {names}, or choose another model.</source>
        <translation>请用{names}提问，或选择另一个模型。</translation>
    </message>
    <message>
        <source>Ask it again.</source>
        <translation>请自己再问一次。</translation>
    </message>
    <message>
        <source>Ask something else.</source>
        <translation>请问点别的。</translation>
    </message>
    <message>
        <source>Ask the operator of the server.</source>
        <translation>请询问它的管理者。</translation>
    </message>
    <message>
        <source>Begin a new one.</source>
        <translation>请开始新的对话。</translation>
    </message>
    <message>
        <source>Build one with `moss-voice trt build`.</source>
        <translation>请用 moss-voice trt build 构建一个。</translation>
    </message>
    <message>
        <source>Bundle {bundle} has no speaker encoder, so it has one voice only.</source>
        <translation>模型包 {bundle} 没有说话人编码器，因此只有一种声音。</translation>
    </message>
    <message>
        <source>Check DISPLAY and QT_QPA_PLATFORM, or work without a window: `moss-voice talk --in question.wav --out reply.wav` or `moss-voice demo`.</source>
        <translation>请检查 DISPLAY 和 QT_QPA_PLATFORM，或不用窗口：`moss-voice talk --in question.wav --out reply.wav` 或 `moss-voice demo`。</translation>
    </message>
    <message>
        <source>Check HTTPS_PROXY and NO_PROXY.</source>
        <translation>请检查 HTTPS_PROXY 和 NO_PROXY。</translation>
    </message>
    <message>
        <source>Check it and start again.</source>
        <translation>请检查后重新开始。</translation>
    </message>
    <message>
        <source>Check its permissions.</source>
        <translation>请检查其权限。</translation>
    </message>
    <message>
        <source>Check that it is a Realtime server, and its log.</source>
        <translation>请确认它是 Realtime 服务器，并查看它的日志。</translation>
    </message>
    <message>
        <source>Check that it is not muted, or choose another one.</source>
        <translation>请检查它是否被静音，或另选一个。</translation>
    </message>
    <message>
        <source>Check that it runs.</source>
        <translation>请检查它是否在运行。</translation>
    </message>
    <message>
        <source>Check that no other program uses it exclusively, or choose another one.</source>
        <translation>请确认它没有被其他程序独占，或另选一个。</translation>
    </message>
    <message>
        <source>Check that the server runs, and its port.</source>
        <translation>请检查服务器是否在运行，以及端口是否正确。</translation>
    </message>
    <message>
        <source>Check that this version of the program is installed there, with the extra serve: `-m app doctor` examines it.</source>
        <translation>请确认那里装有本程序的同一版本及其附加组件 serve；可用 -m app doctor 检查。</translation>
    </message>
    <message>
        <source>Check the address and the network.</source>
        <translation>请检查地址和网络。</translation>
    </message>
    <message>
        <source>Check the address.</source>
        <translation>请检查地址。</translation>
    </message>
    <message>
        <source>Check the address; its path is usually /v1/realtime.</source>
        <translation>请检查地址；路径通常是 /v1/realtime。</translation>
    </message>
    <message>
        <source>Check the address; with a certificate it begins with wss://.</source>
        <translation>请检查地址；有证书时以 wss:// 开头。</translation>
    </message>
    <message>
        <source>Check the address; without a certificate it begins with ws://.</source>
        <translation>请检查地址；没有证书时以 ws:// 开头。</translation>
    </message>
    <message>
        <source>Check the connection and run the same fetch again; existing files are kept.</source>
        <translation>请检查网络连接后继续下载；已有文件会保留。</translation>
    </message>
    <message>
        <source>Check the connection and start again: what was downloaded is kept.</source>
        <translation>请检查网络连接后重新开始：已下载的内容会保留。</translation>
    </message>
    <message>
        <source>Check the file.</source>
        <translation>请检查该文件。</translation>
    </message>
    <message>
        <source>Check the key of the server.</source>
        <translation>请检查服务器的密钥。</translation>
    </message>
    <message>
        <source>Check the key.</source>
        <translation>请检查密钥。</translation>
    </message>
    <message>
        <source>Check the name.</source>
        <translation>请检查文件名。</translation>
    </message>
    <message>
        <source>Check the network.</source>
        <translation>请检查网络。</translation>
    </message>
    <message>
        <source>Chinese</source>
        <translation>中文</translation>
    </message>
    <message>
        <source>Choose --kv native.</source>
        <translation>请选择 --kv native。</translation>
    </message>
    <message>
        <source>Choose a folder that you may write to.</source>
        <translation>请选择可以写入的文件夹。</translation>
    </message>
    <message>
        <source>Choose a higher device latency in the settings.</source>
        <translation>请在设置中选择更高的设备延迟。</translation>
    </message>
    <message>
        <source>Choose a longer one.</source>
        <translation>请选择更长的录音。</translation>
    </message>
    <message>
        <source>Choose a model that works in the settings.</source>
        <translation>请在设置中选择可用的模型。</translation>
    </message>
    <message>
        <source>Choose a shorter one.</source>
        <translation>请换一个较短的。</translation>
    </message>
    <message>
        <source>Choose a spoken reply of this conversation.</source>
        <translation>请选择本次对话中的语音回复。</translation>
    </message>
    <message>
        <source>Choose another conversation.</source>
        <translation>请选择其他对话。</translation>
    </message>
    <message>
        <source>Choose another folder.</source>
        <translation>请选择其他文件夹。</translation>
    </message>
    <message>
        <source>Choose another name for the recording.</source>
        <translation>请为录音换一个名称。</translation>
    </message>
    <message>
        <source>Choose another name.</source>
        <translation>请换一个名称。</translation>
    </message>
    <message>
        <source>Choose another one.</source>
        <translation>请另选一个。</translation>
    </message>
    <message>
        <source>Choose fewer, or free memory.</source>
        <translation>请减少步数，或释放显存。</translation>
    </message>
    <message>
        <source>Choose fewer, or half precision for the codec.</source>
        <translation>请减少步数，或让编解码器使用半精度。</translation>
    </message>
    <message>
        <source>Choose keys for MOSS Voice in the keyboard settings of the desktop.</source>
        <translation>请在桌面的键盘设置中为 MOSS Voice 选择按键。</translation>
    </message>
    <message>
        <source>Choose keys in the settings to be asked again.</source>
        <translation>在设置中重新选择按键，即可再次询问。</translation>
    </message>
    <message>
        <source>Choose native weights (--weights native); --kernels torch runs quantized ones about 30 times slower.</source>
        <translation>请选择原生权重（--weights native）；使用 --kernels torch 也能运行量化权重，但速度约慢 30 倍。</translation>
    </message>
    <message>
        <source>Choose no voice, or use a bundle whose voice can be chosen.</source>
        <translation>请不要选择声音，或使用可以选择声音的模型包。</translation>
    </message>
    <message>
        <source>Choose other keys in the settings.</source>
        <translation>请在设置中选择其他按键。</translation>
    </message>
    <message>
        <source>Choose that model in the settings, or begin a new conversation.</source>
        <translation>请在设置中选择该模型，或开始新对话。</translation>
    </message>
    <message>
        <source>Close that one and start again.</source>
        <translation>请关闭那个窗口后重试。</translation>
    </message>
    <message>
        <source>Connect one and look for devices again.</source>
        <translation>请连接一个，然后重新查找设备。</translation>
    </message>
    <message>
        <source>Connect one; it is used as soon as it is found.</source>
        <translation>请连接设备；找到后会自动使用。</translation>
    </message>
    <message>
        <source>Connect to another one, or try again later.</source>
        <translation>请连接另一个，或稍后再试。</translation>
    </message>
    <message>
        <source>Convert and build that bundle, or use the one that the engine was built from.</source>
        <translation>请转换并构建该模型包，或使用构建引擎时所用的模型包。</translation>
    </message>
    <message>
        <source>Convert it, for example with: ffmpeg -i FILE -ar 16000 speech.wav</source>
        <translation>请转换它，例如：ffmpeg -i FILE -ar 16000 speech.wav</translation>
    </message>
    <message>
        <source>Convert it, for example with: ffmpeg -i FILE speech.wav</source>
        <translation>请转换它，例如：ffmpeg -i FILE speech.wav</translation>
    </message>
    <message>
        <source>Copy it again.</source>
        <translation>请重新复制。</translation>
    </message>
    <message>
        <source>Copy or download the bundle again.</source>
        <translation>请重新复制或下载模型包。</translation>
    </message>
    <message>
        <source>Copy or record it again.</source>
        <translation>请重新复制或录制。</translation>
    </message>
    <message>
        <source>Create it first.</source>
        <translation>请先创建它。</translation>
    </message>
    <message>
        <source>Cut it first.</source>
        <translation>请先剪短它。</translation>
    </message>
    <message>
        <source>Delete it yourself if you want to.</source>
        <translation>如有需要，请自行删除。</translation>
    </message>
    <message>
        <source>Do not use it.</source>
        <translation>请不要使用它。</translation>
    </message>
    <message>
        <source>Download it again.</source>
        <translation>请重新下载。</translation>
    </message>
    <message>
        <source>Echo cancellation needs sound at {needed:,} Hz, but it is captured at {rate:,} Hz.</source>
        <translation>回声消除需要 {needed:,} Hz 的声音，但采集的是 {rate:,} Hz。</translation>
    </message>
    <message>
        <source>Echo cancellation needs the package {package}, which is not installed. {remedy}</source>
        <translation>回声消除需要 {package} 软件包，但它没有安装。{remedy}</translation>
    </message>
    <message>
        <source>End that process (kill -9 {process}) and start again, or open a second window that saves nothing: moss-voice --new-instance</source>
        <translation>请结束该进程（kill -9 {process}）后重新启动，或打开一个不保留任何内容的第二个窗口：moss-voice --new-instance</translation>
    </message>
    <message>
        <source>English</source>
        <translation>英语</translation>
    </message>
    <message>
        <source>Fill it elsewhere: moss-voice gpu download DIR.</source>
        <translation>请在别处填充它：moss-voice gpu download DIR。</translation>
    </message>
    <message>
        <source>Fill it where there is a network, with this version of the program: moss-voice gpu download DIR.</source>
        <translation>请在有网络的地方用本程序的这个版本填充它：moss-voice gpu download DIR。</translation>
    </message>
    <message>
        <source>Free some space and start again.</source>
        <translation>请腾出一些空间后重新开始。</translation>
    </message>
    <message>
        <source>Free some space and start again: what was downloaded is kept.</source>
        <translation>请腾出一些空间后重新开始：已下载的内容会保留。</translation>
    </message>
    <message>
        <source>Free some space or choose another folder.</source>
        <translation>请腾出一些空间，或另选文件夹。</translation>
    </message>
    <message>
        <source>Free some space, or choose a folder on another disk with --to.</source>
        <translation>请释放一些空间。</translation>
    </message>
    <message>
        <source>Free some space.</source>
        <translation>请释放一些空间。</translation>
    </message>
    <message>
        <source>Give --engine-python the interpreter of an environment, such as ~/moss-trt/bin/python.</source>
        <translation>请用 --engine-python 指定某个环境的解释器，例如 ~/moss-trt/bin/python。</translation>
    </message>
    <message>
        <source>Give the folder of a Whisper model in CTranslate2&apos;s format.</source>
        <translation>请指定 CTranslate2 格式的 Whisper 模型所在的文件夹。</translation>
    </message>
    <message>
        <source>Global hotkeys are supported on X11 and by the portal of Wayland only.</source>
        <translation>全局热键仅支持 X11，以及 Wayland 的桌面门户。</translation>
    </message>
    <message>
        <source>If it has no certificate, use ws://.</source>
        <translation>如果它没有证书，请使用 ws://。</translation>
    </message>
    <message>
        <source>In the window push-to-talk works with its keys, and Ctrl+M mutes.</source>
        <translation>在窗口中，按键说话的按键仍然有效，Ctrl+M 为静音。</translation>
    </message>
    <message>
        <source>Install MOSS Voice again, in an environment of its own.</source>
        <translation>请在单独的环境中重新安装 MOSS Voice。</translation>
    </message>
    <message>
        <source>Install Triton and the NVIDIA driver again; `moss-voice doctor` examines them.</source>
        <translation>请重新安装 Triton 和 NVIDIA 驱动；`moss-voice doctor` 会检查它们。</translation>
    </message>
    <message>
        <source>Install a driver that supports CUDA {wanted}, and check that nvidia-smi works.</source>
        <translation>请安装支持 CUDA {wanted} 的驱动程序，并确认 nvidia-smi 可以运行。</translation>
    </message>
    <message>
        <source>Install a newer driver.</source>
        <translation>请安装更新的驱动程序。</translation>
    </message>
    <message>
        <source>Install them (sudo apt-get install gcc libc6-dev python3-dev), or choose native weights (--weights native); --kernels torch runs quantized ones about 30 times slower.</source>
        <translation>请安装它们（sudo apt-get install gcc libc6-dev python3-dev），或选择原生权重（--weights native）；使用 --kernels torch 也能运行量化权重，但速度约慢 30 倍。</translation>
    </message>
    <message>
        <source>Install them: sudo apt-get install gcc libc6-dev python3-dev.</source>
        <translation>请安装它们：sudo apt-get install gcc libc6-dev python3-dev。</translation>
    </message>
    <message>
        <source>It is being restored; then the conversation continues.</source>
        <translation>正在重新连接，之后对话继续。</translation>
    </message>
    <message>
        <source>It is reconnected automatically; check its cable or choose another one.</source>
        <translation>程序会自动重试；请检查连线或另选一个。</translation>
    </message>
    <message>
        <source>It is started again for the next turn.</source>
        <translation>下一次发言时会重新启动。</translation>
    </message>
    <message>
        <source>It replies with another one. Choose one that it has in the settings.</source>
        <translation>服务器会使用其他音色回复。请在设置中选择它提供的音色。</translation>
    </message>
    <message>
        <source>It was removed. Start again; the other files are kept.</source>
        <translation>它已被删除；请重新开始，其他文件会保留。</translation>
    </message>
    <message>
        <source>It would be overwritten: choose another name for one of them.</source>
        <translation>它会被覆盖：请给其中一个换个名称。</translation>
    </message>
    <message>
        <source>Keys and values in fp8 need a GPU of compute capability 8.9 or later.</source>
        <translation>fp8 格式的键和值需要计算能力 8.9 或更高的 GPU。</translation>
    </message>
    <message>
        <source>MOSS Voice is already running ({holder}), but has no window that can be reached.</source>
        <translation>MOSS Voice 已在运行（{holder}），但没有可以访问的窗口。</translation>
    </message>
    <message>
        <source>MOSS Voice is already running ({holder}), but its window does not answer.</source>
        <translation>MOSS Voice 已在运行（{holder}），但它的窗口没有响应。</translation>
    </message>
    <message>
        <source>More is said than can be transcribed.</source>
        <translation>说话的内容太多，来不及转写。</translation>
    </message>
    <message>
        <source>Name a recording in it.</source>
        <translation>请指定其中的录音文件。</translation>
    </message>
    <message>
        <source>No GPU runtime is needed.</source>
        <translation>不需要 GPU 运行时。</translation>
    </message>
    <message>
        <source>No NVIDIA driver was found, so no GPU can be used.</source>
        <translation>未找到 NVIDIA 驱动程序，没有它就无法使用 GPU。</translation>
    </message>
    <message>
        <source>No engine is loaded.</source>
        <translation>没有可以回答的引擎。</translation>
    </message>
    <message>
        <source>No microphone is open.</source>
        <translation>没有打开的麦克风。</translation>
    </message>
    <message>
        <source>No reply has any speech, so {out} was not written.</source>
        <translation>没有任何回复包含语音，因此没有写入 {out}。</translation>
    </message>
    <message>
        <source>No speech was found in {file} (its loudest moment has {loudest_dbfs:.0f} dBFS).</source>
        <translation>{file} 中没有语音（最响处为 {loudest_dbfs:.0f} dBFS）。</translation>
    </message>
    <message>
        <source>No window can be opened here ({reason}).</source>
        <translation>这里无法打开窗口（{reason}）。</translation>
    </message>
    <message>
        <source>No {kind} was found.</source>
        <translation>没有找到{kind}。</translation>
    </message>
    <message>
        <source>On Debian or Ubuntu install it with: apt install libportaudio2 libasound2-plugins</source>
        <translation>在 Debian 或 Ubuntu 上请这样安装：apt install libportaudio2 libasound2-plugins</translation>
    </message>
    <message>
        <source>Pass a recording or a text.</source>
        <translation>请给它一个文件或一段文字。</translation>
    </message>
    <message>
        <source>Pass the key separately.</source>
        <translation>请单独填写密钥。</translation>
    </message>
    <message>
        <source>Press Start before you talk.</source>
        <translation>请先按“开始”再说话。</translation>
    </message>
    <message>
        <source>Put the file itself there, or remove it.</source>
        <translation>请放入文件本身，或删除它。</translation>
    </message>
    <message>
        <source>Put the file itself there.</source>
        <translation>请放入文件本身。</translation>
    </message>
    <message>
        <source>Rebuild the engine with `moss-voice trt build`.</source>
        <translation>请用 moss-voice trt build 重新构建引擎。</translation>
    </message>
    <message>
        <source>Record it again, or choose another one.</source>
        <translation>请重新录制，或选择另一个。</translation>
    </message>
    <message>
        <source>Record it again.</source>
        <translation>请重新录制。</translation>
    </message>
    <message>
        <source>Record or convert it again.</source>
        <translation>请重新录制或转换。</translation>
    </message>
    <message>
        <source>Reinstall the package pipecat-ai.</source>
        <translation>请重新安装 pipecat-ai 软件包。</translation>
    </message>
    <message>
        <source>Reinstall the package silero-vad.</source>
        <translation>请重新安装 silero-vad 软件包。</translation>
    </message>
    <message>
        <source>Rename it.</source>
        <translation>请重命名它。</translation>
    </message>
    <message>
        <source>Restart the program; the log file has details.</source>
        <translation>请重新启动程序；详情见日志文件。</translation>
    </message>
    <message>
        <source>Restart the server.</source>
        <translation>请重新启动服务器。</translation>
    </message>
    <message>
        <source>Restart this program to use sound again.</source>
        <translation>请重新启动本程序以恢复声音。</translation>
    </message>
    <message>
        <source>Run the same fetch again; the other files are kept.</source>
        <translation>请重新下载，其他文件会保留。</translation>
    </message>
    <message>
        <source>Run: {command}</source>
        <translation>运行：{command}</translation>
    </message>
    <message>
        <source>Say or type something.</source>
        <translation>请说点或输入点什么。</translation>
    </message>
    <message>
        <source>See the log file for details.</source>
        <translation>日志文件中有更多信息。</translation>
    </message>
    <message>
        <source>See the log file.</source>
        <translation>详见日志文件。</translation>
    </message>
    <message>
        <source>Send a shorter message; the conversation so far is kept.</source>
        <translation>请发送较短的消息；之前的对话会保留。</translation>
    </message>
    <message>
        <source>Shorten it, or ask it in parts.</source>
        <translation>请缩短，或分几次提问。</translation>
    </message>
    <message>
        <source>Silence alone ends a turn, because Smart Turn is not installed.</source>
        <translation>由于没有安装 Smart Turn，只能靠静音判断说话结束。</translation>
    </message>
    <message>
        <source>Silence alone ends a turn, because {path} is damaged.</source>
        <translation>由于 {path} 已损坏，只能靠静音判断说话结束。</translation>
    </message>
    <message>
        <source>Sound cannot be used: the PortAudio library is missing.</source>
        <translation>无法使用声音：缺少 PortAudio 库。</translation>
    </message>
    <message>
        <source>Sound is back: {names}.</source>
        <translation>声音已恢复：{names}。</translation>
    </message>
    <message>
        <source>Speech and playback in progress were dropped; continue as before.</source>
        <translation>当时正在说或播放的内容已丢弃；可照常继续。</translation>
    </message>
    <message>
        <source>Speech cannot be detected: the package silero-vad is missing.</source>
        <translation>无法检测语音：缺少 silero-vad 软件包。</translation>
    </message>
    <message>
        <source>Speech cannot be detected: {path} is damaged.</source>
        <translation>无法检测语音：{path} 已损坏。</translation>
    </message>
    <message>
        <source>Start `{python} -m app serve` in a terminal to see why.</source>
        <translation>请在终端运行 `{python} -m app serve` 查看原因。</translation>
    </message>
    <message>
        <source>Start again to continue.</source>
        <translation>重新开始即可继续。</translation>
    </message>
    <message>
        <source>Start another one.</source>
        <translation>请重新开始一个。</translation>
    </message>
    <message>
        <source>Start the program with that bundle, or begin a new conversation.</source>
        <translation>请用该模型包启动程序，或开始新对话。</translation>
    </message>
    <message>
        <source>That question is no longer remembered.</source>
        <translation>该问题已不再保留。</translation>
    </message>
    <message>
        <source>That reply has no sound to play again.</source>
        <translation>该回复没有可以重播的声音。</translation>
    </message>
    <message>
        <source>The GPU has too little free memory for {steps} flow steps.</source>
        <translation>GPU 空闲显存不足，无法运行 {steps} 步流匹配。</translation>
    </message>
    <message>
        <source>The GPU runs plain torch, several times slower than the Triton kernels: {reason}.</source>
        <translation>GPU 以普通 torch 运行，比 Triton 内核慢数倍：{reason}。</translation>
    </message>
    <message>
        <source>The GPU runtime is being installed or removed by another process.</source>
        <translation>另一个进程正在安装或删除 GPU 运行时。</translation>
    </message>
    <message>
        <source>The GPU runtime is for the packaged program only.</source>
        <translation>GPU 运行时只用于打包的程序。</translation>
    </message>
    <message>
        <source>The GPU runtime is installed, but {error}.</source>
        <translation>GPU 运行时已安装，但是：{error}。</translation>
    </message>
    <message>
        <source>The GPU runtime is not used: {failure}.</source>
        <translation>未使用 GPU 运行时：{failure}。</translation>
    </message>
    <message>
        <source>The NVIDIA driver supports CUDA {found}, but {wanted} is needed.</source>
        <translation>NVIDIA 驱动程序支持 CUDA {found}，需要 {wanted}。</translation>
    </message>
    <message>
        <source>The Triton kernels cannot run here: {reason}.</source>
        <translation>Triton 内核无法在这里运行：{reason}。</translation>
    </message>
    <message>
        <source>The Whisper model in {folder} cannot be loaded ({error}).</source>
        <translation>无法加载 {folder} 中的 Whisper 模型（{error}）。</translation>
    </message>
    <message>
        <source>The X server cannot be used for hotkeys ({failure}).</source>
        <translation>无法向 X 服务器请求热键（{failure}）。</translation>
    </message>
    <message>
        <source>The certificate of {name} cannot be verified: {reason}.</source>
        <translation>无法验证 {name} 的证书：{reason}。</translation>
    </message>
    <message>
        <source>The connection to {address} was lost.</source>
        <translation>与 {address} 的连接已断开。</translation>
    </message>
    <message>
        <source>The connection to {server} is back.</source>
        <translation>与 {server} 的连接已恢复。</translation>
    </message>
    <message>
        <source>The conversation broke off.</source>
        <translation>对话中断了。</translation>
    </message>
    <message>
        <source>The conversation failed with an unexpected {kind}: {error}.</source>
        <translation>对话因意外的 {kind} 失败：{error}。</translation>
    </message>
    <message>
        <source>The conversation has format {format!r}; this program reads {wanted_format}.</source>
        <translation>对话的格式是 {format!r}；本程序读取 {wanted_format}。</translation>
    </message>
    <message>
        <source>The desktop has given no keys to: {names}.</source>
        <translation>桌面没有为以下操作分配按键：{names}。</translation>
    </message>
    <message>
        <source>The disk is too slow to record the conversation.</source>
        <translation>磁盘太慢，无法录制对话。</translation>
    </message>
    <message>
        <source>The disk of {folder} has {free:.1f} GB free, but {needed:.1f} GB are needed.</source>
        <translation>{folder} 所在磁盘剩余 {free:.1f} GB，需要 {needed:.1f} GB。</translation>
    </message>
    <message>
        <source>The disk of {folder} is full.</source>
        <translation>{folder} 所在磁盘已满。</translation>
    </message>
    <message>
        <source>The disk of {parent} has {free:.1f} GB free, but {missing:.1f} GB are needed.</source>
        <translation>{parent} 所在磁盘剩余 {free:.1f} GB，需要 {missing:.1f} GB。</translation>
    </message>
    <message>
        <source>The disk of {to} has {free} free, but {missing} are needed.</source>
        <translation>{to} 所在磁盘剩余 {free}，需要 {missing}。</translation>
    </message>
    <message>
        <source>The download of {file} was interrupted {attempts} times: {reason}.</source>
        <translation>{file} 中断了 {attempts} 次：{reason}。</translation>
    </message>
    <message>
        <source>The engine cannot be loaded: {kind}: {error}.</source>
        <translation>无法加载引擎：{kind}: {error}。</translation>
    </message>
    <message>
        <source>The engine failed with an unexpected {kind}: {error}.</source>
        <translation>引擎因意外的 {kind} 而失败：{error}。</translation>
    </message>
    <message>
        <source>The engine failed: {error}.</source>
        <translation>引擎出错：{error}。</translation>
    </message>
    <message>
        <source>The engine in {python} did not start: {said}</source>
        <translation>{python} 中的引擎没有启动：{said}</translation>
    </message>
    <message>
        <source>The engine in {python} was not ready after {minutes:.0f} minutes: {said}</source>
        <translation>{python} 中的引擎在 {minutes:.0f} 分钟后仍未就绪：{said}</translation>
    </message>
    <message>
        <source>The engine&apos;s process has ended with status {status}: {said}</source>
        <translation>引擎进程已结束，状态码 {status}：{said}</translation>
    </message>
    <message>
        <source>The file {file} of MOSS Voice cannot be used: {cause}.</source>
        <translation>无法使用 MOSS Voice 的文件 {file}：{cause}。</translation>
    </message>
    <message>
        <source>The flow steps cannot change during a reply.</source>
        <translation>回复过程中不能更改流步数。</translation>
    </message>
    <message>
        <source>The flow&apos;s caches are too small for this many replies.</source>
        <translation>流的缓存不足以同时容纳这么多回复。</translation>
    </message>
    <message>
        <source>The flow&apos;s caches are too small for {steps} flow steps.</source>
        <translation>流匹配缓存容不下 {steps} 步。</translation>
    </message>
    <message>
        <source>The global hotkeys were not allowed.</source>
        <translation>全局热键未获允许。</translation>
    </message>
    <message>
        <source>The history of the conversation is damaged.</source>
        <translation>对话的历史记录已损坏。</translation>
    </message>
    <message>
        <source>The host of {name} was not found.</source>
        <translation>找不到主机 {name}。</translation>
    </message>
    <message>
        <source>The hotkey {name} is chosen twice: {first} and {second}.</source>
        <translation>热键 {name} 被选择了两次：{first}，以及{second}。</translation>
    </message>
    <message>
        <source>The index {url} has no {file}.</source>
        <translation>索引 {url} 中没有 {file}。</translation>
    </message>
    <message>
        <source>The key in {file} cannot be read: {error}.</source>
        <translation>无法读取 {file} 中的密钥：{error}。</translation>
    </message>
    <message>
        <source>The key would be sent to {address} without encryption.</source>
        <translation>密钥将不加密地发送到 {address}。</translation>
    </message>
    <message>
        <source>The loudspeaker does not say when it plays, so its echo cannot be cancelled.</source>
        <translation>扬声器不报告播放时间，因此无法消除它的回声。</translation>
    </message>
    <message>
        <source>The microphone is closed.</source>
        <translation>麦克风未打开。</translation>
    </message>
    <message>
        <source>The microphone is muted.</source>
        <translation>麦克风已静音。</translation>
    </message>
    <message>
        <source>The microphone {name} delivers silence.</source>
        <translation>麦克风 {name} 没有声音信号。</translation>
    </message>
    <message>
        <source>The microphone {name} loses sound.</source>
        <translation>麦克风 {name} 的声音有丢失。</translation>
    </message>
    <message>
        <source>The model is not loaded yet.</source>
        <translation>模型尚未加载完成。</translation>
    </message>
    <message>
        <source>The package app that Python finds is not that of MOSS Voice ({found}).</source>
        <translation>Python 找到的 app 软件包不是 MOSS Voice 的（{found}）。</translation>
    </message>
    <message>
        <source>The packaged program cannot be added to.</source>
        <translation>打包的程序无法添加组件。</translation>
    </message>
    <message>
        <source>The portal of this desktop offers no global hotkeys ({error}).</source>
        <translation>此桌面的门户不提供全局热键（{error}）。</translation>
    </message>
    <message>
        <source>The process that transcribes has ended with status {status}.</source>
        <translation>转写进程已结束，状态为 {status}。</translation>
    </message>
    <message>
        <source>The program runs on the processor.</source>
        <translation>程序在处理器上运行。</translation>
    </message>
    <message>
        <source>The program runs on the processor; `moss-voice gpu install` repairs it.</source>
        <translation>程序在处理器上运行；`moss-voice gpu install` 可以修复。</translation>
    </message>
    <message>
        <source>The program was suspended for {seconds:,.0f} s, as when the computer sleeps.</source>
        <translation>程序停顿了 {seconds:,.0f} 秒，例如计算机进入了睡眠。</translation>
    </message>
    <message>
        <source>The program works as before; install it again to repeat the test.</source>
        <translation>程序照旧运行；重新开始安装即可再次测试。</translation>
    </message>
    <message>
        <source>The proxy refused a connection to {name}: {error}.</source>
        <translation>代理拒绝连接 {name}：{error}。</translation>
    </message>
    <message>
        <source>The question has {characters:,} characters; the limit is {limit:,}.</source>
        <translation>问题有 {characters:,} 个字符，超过了上限 {limit:,} 个。</translation>
    </message>
    <message>
        <source>The question is empty.</source>
        <translation>问题是空的。</translation>
    </message>
    <message>
        <source>The recording failed with a {kind}.</source>
        <translation>录制因 {kind} 失败。</translation>
    </message>
    <message>
        <source>The recording of the voice holds {size:.1f} s of speech, and at least {least:.1f} s are needed.</source>
        <translation>声音录音含有 {size:.1f} 秒语音，至少需要 {least:.1f} 秒。</translation>
    </message>
    <message>
        <source>The recording of the voice is silent.</source>
        <translation>声音录音是无声的。</translation>
    </message>
    <message>
        <source>The replay broke off.</source>
        <translation>重放中断了。</translation>
    </message>
    <message>
        <source>The server address contains a password.</source>
        <translation>服务器地址中含有密码。</translation>
    </message>
    <message>
        <source>The server could not answer: {said}.</source>
        <translation>服务器无法回答：{said}。</translation>
    </message>
    <message>
        <source>The server does not have the voice {voice}: {said}.</source>
        <translation>服务器没有音色 {voice}：{said}。</translation>
    </message>
    <message>
        <source>The server is shutting down.</source>
        <translation>服务器正在关闭。</translation>
    </message>
    <message>
        <source>The server key has characters that an HTTP header cannot carry.</source>
        <translation>服务器密钥含有请求头无法传送的字符。</translation>
    </message>
    <message>
        <source>The session bus is gone, and the global hotkeys with it.</source>
        <translation>会话总线已断开，全局热键不再可用。</translation>
    </message>
    <message>
        <source>The session bus, by which Wayland gives global hotkeys, cannot be reached ({failure}).</source>
        <translation>无法连接会话总线（{failure}），Wayland 经由它提供全局热键。</translation>
    </message>
    <message>
        <source>The settings could not be saved.</source>
        <translation>设置未能保存。</translation>
    </message>
    <message>
        <source>The sound device {names} was lost.</source>
        <translation>声音设备 {names} 断开了。</translation>
    </message>
    <message>
        <source>The sound server cannot be reached through ALSA; on Debian or Ubuntu install it with: apt install libasound2-plugins</source>
        <translation>无法通过 ALSA 访问声音服务器；在 Debian 或 Ubuntu 上请这样安装：apt install libasound2-plugins</translation>
    </message>
    <message>
        <source>The sound system does not answer ({error}).</source>
        <translation>声音系统没有响应（{error}）。</translation>
    </message>
    <message>
        <source>The sound system does not respond and cannot be closed.</source>
        <translation>声音系统卡住，无法关闭。</translation>
    </message>
    <message>
        <source>The speech cannot be transcribed ({reason}).</source>
        <translation>无法转写这段语音（{reason}）。</translation>
    </message>
    <message>
        <source>The transcription cannot be started: {reason}.</source>
        <translation>无法启动转写：{reason}。</translation>
    </message>
    <message>
        <source>The transcription of a turn took more than {seconds:.0f} s and was ended.</source>
        <translation>一次发言的转写超过 {seconds:.0f} 秒，已被中止。</translation>
    </message>
    <message>
        <source>The wheel contains {name!r}, which lies outside its folder.</source>
        <translation>该 wheel 中的文件 {name!r} 位于其文件夹之外。</translation>
    </message>
    <message>
        <source>The {kind} {absent} is not connected; {present} is used instead.</source>
        <translation>{kind} {absent} 未连接，暂用 {present}。</translation>
    </message>
    <message>
        <source>The {kind} {device!r} cannot be opened.</source>
        <translation>无法打开{kind} {device!r}。</translation>
    </message>
    <message>
        <source>The {kind} {name} is back.</source>
        <translation>{kind} {name} 已恢复。</translation>
    </message>
    <message>
        <source>There is no GPU runtime for {platform} with this Python: {name} has no wheel for it.</source>
        <translation>没有适用于 {platform} 和此 Python 的 GPU 运行时：{name} 没有对应的 wheel。</translation>
    </message>
    <message>
        <source>There is no bundle folder at {path}.</source>
        <translation>{path} 处没有模型包文件夹。</translation>
    </message>
    <message>
        <source>There is no file {path}.</source>
        <translation>没有文件 {path}。</translation>
    </message>
    <message>
        <source>There is no folder {wheels}.</source>
        <translation>没有文件夹 {wheels}。</translation>
    </message>
    <message>
        <source>They apply until the program ends. Check that {file} can be written.</source>
        <translation>它们在程序结束前有效。请检查 {file} 是否可写。</translation>
    </message>
    <message>
        <source>This build detects no turn in {folder}.</source>
        <translation>这个版本在 {folder} 中没有检测到任何发言。</translation>
    </message>
    <message>
        <source>This conversation has no microphone.</source>
        <translation>此对话没有麦克风。</translation>
    </message>
    <message>
        <source>This conversation was held with the bundle {other}, and {bundle} is loaded.</source>
        <translation>此对话使用的是模型包 {other}，而当前加载的是 {bundle}。</translation>
    </message>
    <message>
        <source>This copy is incomplete: reinstall MOSS Voice.</source>
        <translation>这个副本不完整：请重新安装 MOSS Voice。</translation>
    </message>
    <message>
        <source>This copy of the program includes torch for the GPU.</source>
        <translation>程序的这个副本已自带 GPU 版 torch。</translation>
    </message>
    <message>
        <source>This keyboard has no key for {name}.</source>
        <translation>此键盘没有 {name} 对应的按键。</translation>
    </message>
    <message>
        <source>This model knows only {names}.</source>
        <translation>这个模型只懂{names}。</translation>
    </message>
    <message>
        <source>This turn has {tokens} tokens, but only {most} fit into the model&apos;s context of {limit} beside the reply.</source>
        <translation>这次发言有 {tokens} 个词元，但在模型 {limit} 个词元的上下文中，除回复外最多容纳 {most} 个。</translation>
    </message>
    <message>
        <source>This turn is empty.</source>
        <translation>这次发言是空的。</translation>
    </message>
    <message>
        <source>Transcription was switched off.</source>
        <translation>转写已关闭。</translation>
    </message>
    <message>
        <source>Triton needs a C compiler and the headers of Python, and one of them is missing</source>
        <translation>Triton 需要 C 编译器和 Python 头文件，而其中之一缺失</translation>
    </message>
    <message>
        <source>Try again later.</source>
        <translation>请稍后再试。</translation>
    </message>
    <message>
        <source>Try again when one has ended.</source>
        <translation>有对话结束后即可加入。</translation>
    </message>
    <message>
        <source>Try again.</source>
        <translation>请重试。</translation>
    </message>
    <message>
        <source>Type a question first.</source>
        <translation>请先输入问题。</translation>
    </message>
    <message>
        <source>Unmute it before you talk.</source>
        <translation>请先取消静音再说话。</translation>
    </message>
    <message>
        <source>Unset PYTHONPATH, or install MOSS Voice in an environment of its own.</source>
        <translation>请取消 PYTHONPATH，或在单独的环境中安装 MOSS Voice。</translation>
    </message>
    <message>
        <source>Use --kernels torch.</source>
        <translation>请使用 --kernels torch。</translation>
    </message>
    <message>
        <source>Use a matching version of the program.</source>
        <translation>请使用匹配的程序版本。</translation>
    </message>
    <message>
        <source>Use a smaller Whisper model.</source>
        <translation>请使用更小的 Whisper 模型。</translation>
    </message>
    <message>
        <source>Use another one, or leave out --index-url.</source>
        <translation>请使用另一个，或去掉 --index-url。</translation>
    </message>
    <message>
        <source>Use headphones, so that a reply does not interrupt itself.</source>
        <translation>请使用耳机，否则回复会打断自己。</translation>
    </message>
    <message>
        <source>Use its wheel in an environment of Python 3.11 or 3.12: {command}</source>
        <translation>请在 Python 3.11 或 3.12 的环境中使用它的 wheel：{command}</translation>
    </message>
    <message>
        <source>Use the host name that it was issued for; for a certificate of your own, set SSL_CERT_FILE.</source>
        <translation>请使用证书所签发的名称；自签证书请设置 SSL_CERT_FILE。</translation>
    </message>
    <message>
        <source>Use wss://, or an SSH tunnel to a port of this machine.</source>
        <translation>请使用 wss://，或通过 SSH 隧道连接本机端口。</translation>
    </message>
    <message>
        <source>Wait for it to end.</source>
        <translation>请等待它结束。</translation>
    </message>
    <message>
        <source>Wait until it has ended.</source>
        <translation>请等待它结束。</translation>
    </message>
    <message>
        <source>Wait until it is ready.</source>
        <translation>请等待它就绪。</translation>
    </message>
    <message>
        <source>Wait until one has ended.</source>
        <translation>请等待其中一个结束。</translation>
    </message>
    <message>
        <source>Weights in {weight_format} need the Triton kernels, which cannot run here: {reason}.</source>
        <translation>{weight_format} 格式的权重需要 Triton 内核，而 Triton 内核在此无法运行：{reason}。</translation>
    </message>
    <message>
        <source>What you say goes to {server} without encryption, so others on the network can listen.</source>
        <translation>您说的话会不加密地发送到 {server}，网络上的其他人可以听到。</translation>
    </message>
    <message>
        <source>Whisper needs the package faster-whisper: {reason}.</source>
        <translation>Whisper 需要软件包 faster-whisper：{reason}。</translation>
    </message>
    <message>
        <source>Write it as ws://127.0.0.1:8000 or wss://voice.example.org.</source>
        <translation>请写成 ws://127.0.0.1:8000 或 wss://voice.example.org。</translation>
    </message>
    <message>
        <source>Write it on one line.</source>
        <translation>请写在一行里。</translation>
    </message>
    <message>
        <source>Write the audio to a WAV file first.</source>
        <translation>请先把音频写入 WAV 文件。</translation>
    </message>
    <message>
        <source>`moss-voice doctor` shows what is missing.</source>
        <translation>`moss-voice doctor` 会显示缺少什么。</translation>
    </message>
    <message>
        <source>it belongs to another version of the program</source>
        <translation>它属于本程序的另一个版本</translation>
    </message>
    <message>
        <source>it cannot use the GPU ({reason})</source>
        <translation>它无法使用 GPU（{reason}）</translation>
    </message>
    <message>
        <source>its test did not end within {seconds:.0f} s</source>
        <translation>它的测试没有在 {seconds:.0f} 秒内结束</translation>
    </message>
    <message>
        <source>its test ended without a result</source>
        <translation>它的测试没有得出结果</translation>
    </message>
    <message>
        <source>loudspeaker</source>
        <translation>扬声器</translation>
    </message>
    <message>
        <source>microphone</source>
        <translation>麦克风</translation>
    </message>
    <message>
        <source>other users of this computer could have changed its folder</source>
        <translation>这台电脑的其他用户可能更改过它的文件夹</translation>
    </message>
    <message>
        <source>{address} closed the connection ({code}: {reason}).</source>
        <translation>{address} 关闭了连接（{code}: {reason}）。</translation>
    </message>
    <message>
        <source>{address} did not begin a session within {seconds:g} s.</source>
        <translation>{address} 没有在 {seconds:g} 秒内开始会话。</translation>
    </message>
    <message>
        <source>{address} refused a session: {said}.</source>
        <translation>{address} 拒绝了会话：{said}。</translation>
    </message>
    <message>
        <source>{address} sends messages that are not events of the Realtime protocol.</source>
        <translation>{address} 发来的消息不是 Realtime 协议的事件。</translation>
    </message>
    <message>
        <source>{address} sent a message that is not an event of the Realtime protocol.</source>
        <translation>{address} 发来的内容不是 Realtime 协议的事件。</translation>
    </message>
    <message>
        <source>{command} cannot be started: {reason}.</source>
        <translation>无法启动 {command}：{reason}。</translation>
    </message>
    <message>
        <source>{directory} has no table {key}; it is not that of an engine.</source>
        <translation>{directory} 中没有 {key} 表，它不是引擎的配置。</translation>
    </message>
    <message>
        <source>{directory} holds no engine: {plan} is missing.</source>
        <translation>{directory} 中没有引擎：缺少 {plan}。</translation>
    </message>
    <message>
        <source>{file} arrived damaged ({size} of {expected} bytes, or a wrong hash) and was removed.</source>
        <translation>{file} 下载损坏（{size}／{expected} 字节，或校验值不符），已删除。</translation>
    </message>
    <message>
        <source>{file} arrived damaged: its hash differs from that of the lock file.</source>
        <translation>{file} 已损坏：哈希值与锁定清单不符。</translation>
    </message>
    <message>
        <source>{file} cannot be downloaded: {reason}.</source>
        <translation>无法下载 {file}：{reason}。</translation>
    </message>
    <message>
        <source>{file} cannot be read: {error}.</source>
        <translation>无法读取 {file}：{error}。</translation>
    </message>
    <message>
        <source>{file} cannot be read: {reason}.</source>
        <translation>无法读取 {file}：{reason}。</translation>
    </message>
    <message>
        <source>{file} does not match the lock file: its hash is wrong.</source>
        <translation>{file} 不是锁定清单中的文件：哈希值不符。</translation>
    </message>
    <message>
        <source>{file} has no key.</source>
        <translation>{file} 中没有密钥。</translation>
    </message>
    <message>
        <source>{file} is a folder.</source>
        <translation>{file} 是文件夹。</translation>
    </message>
    <message>
        <source>{file} is a link or a device.</source>
        <translation>{file} 是链接或设备。</translation>
    </message>
    <message>
        <source>{file} is a link.</source>
        <translation>{file} 是链接。</translation>
    </message>
    <message>
        <source>{file} is damaged.</source>
        <translation>{file} 已损坏。</translation>
    </message>
    <message>
        <source>{file} is missing.</source>
        <translation>缺少 {file}。</translation>
    </message>
    <message>
        <source>{folder} cannot be deleted: {reason}.</source>
        <translation>无法删除 {folder}：{reason}。</translation>
    </message>
    <message>
        <source>{folder} cannot be read: {reason}.</source>
        <translation>无法读取 {folder}：{reason}。</translation>
    </message>
    <message>
        <source>{folder} has format {format!s:.40}; this program reads format {wanted_format}.</source>
        <translation>{folder} 的格式是 {format!s:.40}；本程序读取格式 {wanted_format}。</translation>
    </message>
    <message>
        <source>{folder} has no {missing}.</source>
        <translation>{folder} 中没有 {missing}。</translation>
    </message>
    <message>
        <source>{folder} holds neither sound nor a question to replay.</source>
        <translation>{folder} 中既没有声音，也没有可重放的问题。</translation>
    </message>
    <message>
        <source>{folder} is being written by another window.</source>
        <translation>另一个窗口正在写入 {folder}。</translation>
    </message>
    <message>
        <source>{folder} is damaged.</source>
        <translation>{folder} 已损坏。</translation>
    </message>
    <message>
        <source>{folder} is not a recorded conversation.</source>
        <translation>{folder} 不是录制的对话。</translation>
    </message>
    <message>
        <source>{folder} was not fetched by this program.</source>
        <translation>{folder} 不是由本程序下载的。</translation>
    </message>
    <message>
        <source>{listed} and {name}</source>
        <translation>{listed}和{name}</translation>
    </message>
    <message>
        <source>{name} accepts no conversation now: {said}.</source>
        <translation>{name} 目前不接受新对话：{said}。</translation>
    </message>
    <message>
        <source>{name} answered with HTTP {status}: {said}.</source>
        <translation>{name} 返回了 HTTP {status}：{said}。</translation>
    </message>
    <message>
        <source>{name} cannot be loaded from {endpoint}: {kind}: {reason}.</source>
        <translation>无法从 {endpoint} 下载 {name}：{kind}: {reason}。</translation>
    </message>
    <message>
        <source>{name} cannot be reached: {reason}.</source>
        <translation>无法连接 {name}：{reason}。</translation>
    </message>
    <message>
        <source>{name} closed the connection before TLS was set up.</source>
        <translation>{name} 在建立 TLS 之前断开了连接。</translation>
    </message>
    <message>
        <source>{name} did not answer within {seconds:g} s.</source>
        <translation>{name} 在 {seconds:g} 秒内没有应答。</translation>
    </message>
    <message>
        <source>{name} does not accept the key: {said}.</source>
        <translation>{name} 不接受该密钥：{said}。</translation>
    </message>
    <message>
        <source>{name} does not speak TLS as expected ({reason}).</source>
        <translation>{name} 的 TLS 不符合预期（{reason}）。</translation>
    </message>
    <message>
        <source>{name} is not a WebSocket server, or it requires TLS.</source>
        <translation>{name} 不是 WebSocket 服务器，或使用了 TLS。</translation>
    </message>
    <message>
        <source>{name} is not available: this machine has {there}.</source>
        <translation>{name} 不可用；本机的设备：{there}。</translation>
    </message>
    <message>
        <source>{name} refused the connection.</source>
        <translation>{name} 拒绝了连接。</translation>
    </message>
    <message>
        <source>{name} refuses this client: {said}.</source>
        <translation>{name} 不允许此客户端连接：{said}。</translation>
    </message>
    <message>
        <source>{other} and {name} are the same file, {written}.</source>
        <translation>{other} 和 {name} 是同一个文件 {written}。</translation>
    </message>
    <message>
        <source>{parent} holds an incomplete engine: {file} is missing.</source>
        <translation>{parent} 中的引擎不完整：缺少 {file}。</translation>
    </message>
    <message>
        <source>{parent} is not a recorded conversation ({file}: {reason}).</source>
        <translation>{parent} 不是录制的对话（{file}: {reason}）。</translation>
    </message>
    <message>
        <source>{path} became shorter while it was read.</source>
        <translation>{path} 在读取时变短了。</translation>
    </message>
    <message>
        <source>{path} cannot be opened: {reason}.</source>
        <translation>无法打开 {path}：{reason}。</translation>
    </message>
    <message>
        <source>{path} cannot be read: {reason}.</source>
        <translation>无法读取 {path}：{reason}。</translation>
    </message>
    <message>
        <source>{path} has a sample rate of {rate} Hz; {lowest} to {highest} Hz can be read.</source>
        <translation>{path} 的采样率为 {rate} Hz；可以读取 {lowest} 到 {highest} Hz。</translation>
    </message>
    <message>
        <source>{path} has no audio, or its length was never written.</source>
        <translation>{path} 没有音频，或从未写入其长度。</translation>
    </message>
    <message>
        <source>{path} has reached the greatest length of a WAV file.</source>
        <translation>{path} 已达到 WAV 文件的最大长度。</translation>
    </message>
    <message>
        <source>{path} is a folder.</source>
        <translation>{path} 是文件夹。</translation>
    </message>
    <message>
        <source>{path} is a pipe or a device, not a file.</source>
        <translation>{path} 是管道或设备，不是文件。</translation>
    </message>
    <message>
        <source>{path} is empty.</source>
        <translation>{path} 是空的。</translation>
    </message>
    <message>
        <source>{path} is not a WAV or FLAC file.</source>
        <translation>{path} 不是 WAV 或 FLAC 文件。</translation>
    </message>
    <message>
        <source>{path} is not a recording of this program.</source>
        <translation>{path} 不是本程序的录音。</translation>
    </message>
    <message>
        <source>{path} is truncated: it has {size} of {length} bytes of audio.</source>
        <translation>{path} 不完整：{length} 字节的音频只有 {size} 字节。</translation>
    </message>
    <message>
        <source>{path} lasts {seconds:.0f} s, more than the {most:.0f} s allowed here.</source>
        <translation>{path} 长 {seconds:.0f} 秒，超过这里允许的 {most:.0f} 秒。</translation>
    </message>
    <message>
        <source>{path} was built from other weights (of bundle {made_of}) than bundle {bundle} has.</source>
        <translation>{path} 是由模型包 {made_of} 的权重构建的，与模型包 {bundle} 不符。</translation>
    </message>
    <message>
        <source>{path} was deleted while it was written.</source>
        <translation>{path} 在写入时被删除。</translation>
    </message>
    <message>
        <source>{path} was not written completely.</source>
        <translation>{path} 未能完整写入。</translation>
    </message>
    <message>
        <source>{path} was not written: a folder has that name.</source>
        <translation>未能写入 {path}：已有同名文件夹。</translation>
    </message>
    <message>
        <source>{path} was not written: it is not a regular file.</source>
        <translation>未能写入 {path}：它不是普通文件。</translation>
    </message>
    <message>
        <source>{path} was not written: its name is too long.</source>
        <translation>未能写入 {path}：名称太长。</translation>
    </message>
    <message>
        <source>{path} was not written: no permission.</source>
        <translation>{path} 未能写入：没有权限。</translation>
    </message>
    <message>
        <source>{path} was not written: the command&apos;s own output goes there.</source>
        <translation>未能写入 {path}：命令的输出正写入那里。</translation>
    </message>
    <message>
        <source>{path} was not written: the disk is full.</source>
        <translation>{path} 未能写入：磁盘已满。</translation>
    </message>
    <message>
        <source>{path} was not written: there is no folder {parent}.</source>
        <translation>{path} 未能写入：没有文件夹 {parent}。</translation>
    </message>
    <message>
        <source>{path} was not written: {parent} cannot hold files.</source>
        <translation>未写入 {path}：{parent} 中不能创建文件。</translation>
    </message>
    <message>
        <source>{path} was not written: {reason}.</source>
        <translation>未能写入 {path}：{reason}。</translation>
    </message>
    <message>
        <source>{plan} cannot be read: {error}.</source>
        <translation>无法读取 {plan}：{error}。</translation>
    </message>
    <message>
        <source>{python} cannot be started: {reason}.</source>
        <translation>无法启动 {python}：{reason}。</translation>
    </message>
    <message>
        <source>{root} has too many folders of this name.</source>
        <translation>{root} 中这个名称的文件夹太多。</translation>
    </message>
    <message>
        <source>{target} already exists.</source>
        <translation>{target} 已经存在。</translation>
    </message>
    <message>
        <source>{text!r} is not a valid server address.</source>
        <translation>{text!r} 不是服务器地址。</translation>
    </message>
    <message>
        <source>{wheels} lacks {missing} of {needed} wheels, first {first}.</source>
        <translation>{wheels} 缺少 {needed} 个 wheel 中的 {missing} 个，首先是 {first}。</translation>
    </message>
    <message>
        <source>{wheel} cannot be unpacked: {error}.</source>
        <translation>无法解包 {wheel}：{error}。</translation>
    </message>
    <message>
        <source>{where} cannot be used: {reason}.</source>
        <translation>无法使用 {where}：{reason}。</translation>
    </message>
</context>
</TS>
