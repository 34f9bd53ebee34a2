<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE TS>
<TS version="2.1" language="zh_CN" sourcelanguage="en">
<context>
    <name>AppearancePage</name>
    <message>
        <source>Follow the desktop</source>
        <translation>跟随桌面</translation>
    </message>
    <message>
        <source>Light</source>
        <translation>浅色</translation>
    </message>
    <message>
        <source>Dark</source>
        <translation>深色</translation>
    </message>
    <message>
        <source>Keep running in the tray when the window is closed</source>
        <translation>关闭窗口后继续在托盘中运行</translation>
    </message>
    <message>
        <source>Start minimised, in the tray if there is one</source>
        <translation>启动时最小化（有托盘时进入托盘）</translation>
    </message>
    <message>
        <source>Start listening when the program starts</source>
        <translation>程序启动后开始聆听</translation>
    </message>
    <message>
        <source>&amp;Theme</source>
        <translation>主题(&amp;T)</translation>
    </message>
    <message>
        <source>L&amp;anguage</source>
        <translation>语言(&amp;A)</translation>
    </message>
    <message>
        <source>Si&amp;ze</source>
        <translation>大小(&amp;Z)</translation>
    </message>
    <message>
        <source>Size of texts and plots. Ctrl and plus, minus or 0 change it in every window.</source>
        <translation>文字与图表的大小。在任何窗口中按 Ctrl 加加号、减号或 0 调整。</translation>
    </message>
</context>
<context>
    <name>CaptionsPage</name>
    <message>
        <source>Show what I say in words</source>
        <translation>用文字显示我说的话</translation>
    </message>
    <message>
        <source>Whisper model</source>
        <translation>Whisper 模型</translation>
    </message>
    <message>
        <source>a folder with model.bin and tokenizer.json</source>
        <translation>包含 model.bin 和 tokenizer.json 的文件夹</translation>
    </message>
    <message>
        <source>Ca&amp;ptions</source>
        <translation>字幕(&amp;P)</translation>
    </message>
    <message>
        <source>Whisper mo&amp;del</source>
        <translation>Whisper 模型(&amp;D)</translation>
    </message>
    <message>
        <source>In CTranslate2&apos;s format, such as whisper-base. The words appear a second or more after you spoke; replies do not wait for them. Nothing is downloaded or sent.</source>
        <translation>CTranslate2 格式，例如 whisper-base。文字会在您说完一秒或更久之后出现；回答不会等待它们。不会下载或发送任何内容。</translation>
    </message>
    <message>
        <source>Folder of the Whisper model</source>
        <translation>Whisper 模型所在的文件夹</translation>
    </message>
</context>
<context>
    <name>CodecPage</name>
    <message>
        <source>bundle default</source>
        <translation>按模型包设定</translation>
    </message>
    <message>
        <source>Automatic</source>
        <translation>自动</translation>
    </message>
    <message>
        <source>Encode my speech again at the end of my turn</source>
        <translation>我说完后重新编码我的语音</translation>
    </message>
    <message>
        <source>&amp;Flow steps</source>
        <translation>流匹配步数(&amp;F)</translation>
    </message>
    <message>
        <source>More steps sound cleaner and take longer. They apply from the next turn on.</source>
        <translation>步数越多声音越干净，也越慢。从下一轮起生效。</translation>
    </message>
    <message>
        <source>Flow sc&amp;hedule</source>
        <translation>流匹配时间表(&amp;H)</translation>
    </message>
    <message>
        <source>Time schedule of the steps; cosine is the reference.</source>
        <translation>各步的时间表；cosine 为参考。</translation>
    </message>
    <message>
        <source>&amp;Codec precision</source>
        <translation>编解码器精度(&amp;C)</translation>
    </message>
    <message>
        <source>Half precision saves GPU memory.</source>
        <translation>半精度可节省显存。</translation>
    </message>
    <message>
        <source>E&amp;xact encoding</source>
        <translation>精确编码(&amp;X)</translation>
    </message>
    <message>
        <source>Encodes as the model was trained; replies start a little later. It makes no difference with the included bundle.</source>
        <translation>与模型训练时一致，回答稍晚。对程序自带的模型包没有影响。</translation>
    </message>
    <message>
        <source>&amp;TensorRT</source>
        <translation>&amp;TensorRT</translation>
    </message>
    <message>
        <source>Run the codec on TensorRT</source>
        <translation>用 TensorRT 运行编解码器</translation>
    </message>
    <message>
        <source>Runs flow, vocoder and speech encoder with TensorRT on an NVIDIA GPU, in float32 or float16. Their engines are built at the first start, which takes minutes; where that fails, PyTorch is used.</source>
        <translation>在 NVIDIA GPU 上用 TensorRT 以 float32 或 float16 运行流匹配、声码器和语音编码器。引擎在首次启动时构建，需要几分钟；构建失败时改用 PyTorch。</translation>
    </message>
    <message>
        <source>TensorRT cannot run the codec in bfloat16, so PyTorch runs it.</source>
        <translation>TensorRT 不能以 bfloat16 运行编解码器：将由 PyTorch 运行。</translation>
    </message>
</context>
<context>
    <name>CompactWindow</name>
    <message>
        <source>Input level</source>
        <translation>输入电平</translation>
    </message>
    <message>
        <source>Output level</source>
        <translation>输出电平</translation>
    </message>
    <message>
        <source>Mute the microphone</source>
        <translation>将麦克风静音</translation>
    </message>
    <message>
        <source>Stop the reply</source>
        <translation>停止回复</translation>
    </message>
    <message>
        <source>Keep above other windows</source>
        <translation>置于其他窗口之上</translation>
    </message>
    <message>
        <source>Large window</source>
        <translation>完整窗口</translation>
    </message>
</context>
<context>
    <name>Composer</name>
    <message>
        <source>Type a question …</source>
        <translation>输入问题……</translation>
    </message>
    <message>
        <source>Question</source>
        <translation>问题</translation>
    </message>
    <message>
        <source>Enter sends, Shift+Enter starts a new line.</source>
        <translation>回车发送，Shift+回车换行。</translation>
    </message>
    <message>
        <source>Ask (Enter)</source>
        <translation>提问（回车）</translation>
    </message>
    <message>
        <source>Ask the question</source>
        <translation>提出这个问题</translation>
    </message>
    <message>
        <source>Stop the reply (Esc)</source>
        <translation>停止回复（Esc）</translation>
    </message>
    <message>
        <source>Stop the reply</source>
        <translation>停止回复</translation>
    </message>
</context>
<context>
    <name>ControlBar</name>
    <message>
        <source>Stop</source>
        <translation>停止</translation>
    </message>
    <message>
        <source>Start</source>
        <translation>开始</translation>
    </message>
    <message>
        <source>Open or close microphone and loudspeaker (Ctrl+Space)</source>
        <translation>打开或关闭麦克风和扬声器（Ctrl+空格）</translation>
    </message>
    <message>
        <source>Unmute the microphone (Ctrl+M)</source>
        <translation>取消麦克风静音（Ctrl+M）</translation>
    </message>
    <message>
        <source>Mute the microphone (Ctrl+M)</source>
        <translation>麦克风静音（Ctrl+M）</translation>
    </message>
    <message>
        <source>Muted</source>
        <translation>已静音</translation>
    </message>
    <message>
        <source>Mute</source>
        <translation>静音</translation>
    </message>
    <message>
        <source>Mute the microphone</source>
        <translation>麦克风静音</translation>
    </message>
    <message>
        <source>Look for sound devices again (Ctrl+R)</source>
        <translation>重新查找声音设备（Ctrl+R）</translation>
    </message>
    <message>
        <source>Look for sound devices again</source>
        <translation>重新查找声音设备</translation>
    </message>
    <message>
        <source>Microphone</source>
        <translation>麦克风</translation>
    </message>
    <message>
        <source>Default microphone</source>
        <translation>默认麦克风</translation>
    </message>
    <message>
        <source>Loudspeaker</source>
        <translation>扬声器</translation>
    </message>
    <message>
        <source>Default loudspeaker</source>
        <translation>默认扬声器</translation>
    </message>
    <message>
        <source>Input level</source>
        <translation>输入电平</translation>
    </message>
    <message>
        <source>Output level</source>
        <translation>输出电平</translation>
    </message>
    <message>
        <source>Reply as</source>
        <translation>回复方式</translation>
    </message>
    <message>
        <source>Speech</source>
        <translation>语音</translation>
    </message>
    <message>
        <source>Text</source>
        <translation>文字</translation>
    </message>
    <message>
        <source>Replies are spoken</source>
        <translation>用语音回复</translation>
    </message>
    <message>
        <source>Replies are written</source>
        <translation>用文字回复</translation>
    </message>
    <message>
        <source>Do not interrupt replies</source>
        <translation>不打断回复</translation>
    </message>
    <message>
        <source>Keep my voice from interrupting replies (Ctrl+I)</source>
        <translation>不让我的声音打断回复（Ctrl+I）</translation>
    </message>
    <message>
        <source>My voice does not interrupt replies (Ctrl+I)</source>
        <translation>我的声音不会打断回复（Ctrl+I）</translation>
    </message>
</context>
<context>
    <name>ConversationActions</name>
    <message>
        <source>The audio of this reply is no longer available.</source>
        <translation>该回答的声音已不再保留。</translation>
    </message>
    <message>
        <source>Start a new conversation?</source>
        <translation>开始新对话？</translation>
    </message>
    <message>
        <source>The assistant forgets this one.</source>
        <translation>助手会忘记当前对话。</translation>
    </message>
    <message>
        <source>New conversation</source>
        <translation>新对话</translation>
    </message>
    <message>
        <source>Reply as audio</source>
        <translation>将回答保存为声音</translation>
    </message>
    <message>
        <source>FLAC (*.flac);;WAV (*.wav)</source>
        <translation>FLAC (*.flac);;WAV (*.wav)</translation>
    </message>
    <message>
        <source>Conversation as text</source>
        <translation>对话文本</translation>
    </message>
    <message>
        <source>Markdown (*.md);;Text (*.txt)</source>
        <translation>Markdown (*.md);;文本 (*.txt)</translation>
    </message>
    <message>
        <source>Nothing has been heard yet.</source>
        <translation>还没有任何声音。</translation>
    </message>
    <message>
        <source>Conversation as audio</source>
        <translation>将对话保存为声音</translation>
    </message>
    <message>
        <source>The sound is being written …</source>
        <translation>正在写入声音……</translation>
    </message>
    <message>
        <source>Nothing has been said yet.</source>
        <translation>还没有任何对话内容。</translation>
    </message>
    <message>
        <source>Conversation copied.</source>
        <translation>已复制对话。</translation>
    </message>
    <message>
        <source>You</source>
        <translation>您</translation>
    </message>
    <message>
        <source>spoke %1 s</source>
        <translation>语音 %1 秒</translation>
    </message>
</context>
<context>
    <name>ConversationPage</name>
    <message>
        <source> ms</source>
        <translation> 毫秒</translation>
    </message>
    <message>
        <source>bundle default</source>
        <translation>按模型包设定</translation>
    </message>
    <message>
        <source>End of t&amp;urn</source>
        <translation>说完检测(&amp;U)</translation>
    </message>
    <message>
        <source>Early re&amp;plies</source>
        <translation>提前回复(&amp;P)</translation>
    </message>
    <message>
        <source>Generates the reply at your first pause and holds it until the end of your turn is confirmed, so that it starts at once. If you continue, that work is lost. Automatic turns this off while the engine is too slow.</source>
        <translation>在您第一次停顿时就生成回复并保留，直到确认您已说完，因此能立即出声。若您继续说话，这些计算就白费了。自动：引擎太慢时关闭。</translation>
    </message>
    <message>
        <source>&amp;Endpointing</source>
        <translation>端点检测(&amp;E)</translation>
    </message>
    <message>
        <source>Silence that ends your turn if it is unclear whether you have finished, or if silence alone decides.</source>
        <translation>不确定您是否说完，或仅看静音时，静音多久算您说完。</translation>
    </message>
    <message>
        <source>&amp;Barge-in</source>
        <translation>打断(&amp;B)</translation>
    </message>
    <message>
        <source>When my voice stops a reply. After half a second, a short &quot;mm-hm&quot; or a cough does not. With open loudspeakers this needs echo cancellation.</source>
        <translation>我的声音何时打断回复。选“半秒后”时，简短的“嗯”或咳嗽不会打断。使用外放扬声器时需要回声消除。</translation>
    </message>
    <message>
        <source>Mean&amp;while</source>
        <translation>期间(&amp;W)</translation>
    </message>
    <message>
        <source>What happens to a reply while you speak over it, until it is clear whether you want it to stop. After an &quot;mm-hm&quot; or a cough it goes on. Automatic: softly with headphones; with loudspeakers it pauses.</source>
        <translation>您在回复播放时说话，在弄清您是否要它停下之前，回复怎么办。若只是“嗯”或咳嗽，回复会继续。自动：戴耳机时轻声继续，用扬声器时暂停。</translation>
    </message>
    <message>
        <source>&amp;Reply as</source>
        <translation>回复方式(&amp;R)</translation>
    </message>
    <message>
        <source>&amp;Seed</source>
        <translation>随机种子(&amp;S)</translation>
    </message>
    <message>
        <source>With the same seed, the same conversation gets the same replies.</source>
        <translation>种子相同时，相同的对话得到相同的回复。</translation>
    </message>
    <message>
        <source>Patient</source>
        <translation>耐心</translation>
    </message>
    <message>
        <source>Balanced</source>
        <translation>均衡</translation>
    </message>
    <message>
        <source>Eager</source>
        <translation>积极</translation>
    </message>
    <message>
        <source>Silence alone</source>
        <translation>仅看静音</translation>
    </message>
    <message>
        <source>Automatic</source>
        <translation>自动</translation>
    </message>
    <message>
        <source>On</source>
        <translation>开</translation>
    </message>
    <message>
        <source>Off</source>
        <translation>关</translation>
    </message>
    <message>
        <source>As soon as I speak</source>
        <translation>我一开口就停止</translation>
    </message>
    <message>
        <source>After half a second of speech</source>
        <translation>我说满半秒后</translation>
    </message>
    <message>
        <source>After a second of speech</source>
        <translation>我说满一秒后</translation>
    </message>
    <message>
        <source>Never</source>
        <translation>从不</translation>
    </message>
    <message>
        <source>It pauses</source>
        <translation>暂停</translation>
    </message>
    <message>
        <source>It goes on softly</source>
        <translation>小声继续</translation>
    </message>
    <message>
        <source>It goes on as before</source>
        <translation>照常继续</translation>
    </message>
    <message>
        <source>Speech</source>
        <translation>语音</translation>
    </message>
    <message>
        <source>Text</source>
        <translation>文字</translation>
    </message>
    <message>
        <source>Smart Turn is not installed, so silence alone ends your turn. Run moss-voice doctor to see how to install it.</source>
        <translation>未安装 Smart Turn，因此仅看静音判断您是否说完。moss-voice doctor 会说明如何安装。</translation>
    </message>
    <message>
        <source>A question that sounds finished is answered after a quarter of a second; in mid-sentence the assistant waits. Eager answers sooner; patient cuts you off less often.</source>
        <translation>听起来已说完的问题，四分之一秒后就回答；句子中间的停顿会继续等待。“积极”回答更快，“耐心”更少打断您。</translation>
    </message>
</context>
<context>
    <name>CounterStrip</name>
    <message>
        <source>under-runs %1</source>
        <translation>播放断流 %1</translation>
    </message>
    <message>
        <source>dropped input %1</source>
        <translation>输入丢失 %1</translation>
    </message>
    <message>
        <source>echo not measured</source>
        <translation>尚未测得回声</translation>
    </message>
    <message>
        <source>Microphone samples that were dropped because they were not read in time.</source>
        <translation>因未及时取走而丢失的麦克风采样数。</translation>
    </message>
    <message>
        <source>Level of the reply in the microphone relative to playback, before and after echo cancellation (negative echo return loss, without and with its enhancement). Medians of recent moments with an echo.</source>
        <translation>麦克风中的回复电平与播放电平之比，分别为回声消除之前和之后：即负的回声返回损耗，以及再减去其增强量。取最近有回声时的中位数。</translation>
    </message>
    <message>
        <source>echo not cancelled</source>
        <translation>未消除回声</translation>
    </message>
    <message>
        <source>no echo</source>
        <translation>没有回声</translation>
    </message>
    <message>
        <source>echo %1 → %2 dB</source>
        <translation>回声 %1 → %2 dB</translation>
    </message>
    <message>
        <source>How often playback ran dry in the middle of a reply, since the start or Clear.</source>
        <translation>自启动或清除以来，回复播放中途断流的次数。</translation>
    </message>
</context>
<context>
    <name>Definitions</name>
    <message>
        <source>tokens</source>
        <translation>词元</translation>
    </message>
    <message>
        <source>Endpointing</source>
        <translation>端点检测</translation>
    </message>
    <message>
        <source>Prefill</source>
        <translation>预填充</translation>
    </message>
    <message>
        <source>Device</source>
        <translation>设备</translation>
    </message>
    <message>
        <source>End of turn</source>
        <translation>说完检测</translation>
    </message>
    <message>
        <source>Probability at a pause that you have finished: from Smart Turn, pitch and level, and from the language model where it can tell. It decides how much silence ends the turn.</source>
        <translation>停顿时由 Smart Turn、音高、音量以及（在支持时）语言模型判断您已说完的概率。它决定静音多久后提交这一轮。</translation>
    </message>
    <message>
        <source>%1 after %2 ms: finished</source>
        <translation>%1，停顿 %2 毫秒时：已说完</translation>
    </message>
    <message>
        <source>%1 after %2 ms: perhaps finished</source>
        <translation>%1，停顿 %2 毫秒时：可能说完</translation>
    </message>
    <message>
        <source>%1 after %2 ms: not finished</source>
        <translation>%1，停顿 %2 毫秒时：未说完</translation>
    </message>
    <message>
        <source>%1 after %2 ms: finished, by the language model</source>
        <translation>%1，停顿 %2 毫秒时：语言模型认为已说完</translation>
    </message>
    <message>
        <source>%1 after %2 ms: not finished, by the language model</source>
        <translation>%1，停顿 %2 毫秒时：语言模型认为未说完</translation>
    </message>
    <message>
        <source>last %1, mean %2, p50 %3, p95 %4, maximum %5</source>
        <translation>最近 %1，平均 %2，p50 %3，p95 %4，最大 %5</translation>
    </message>
    <message>
        <source>Tokens at commit</source>
        <translation>提交时剩余词元</translation>
    </message>
    <message>
        <source>Decode step</source>
        <translation>解码步</translation>
    </message>
    <message>
        <source>Audio per chunk</source>
        <translation>每块音频</translation>
    </message>
    <message>
        <source>TTFA</source>
        <translation>TTFA</translation>
    </message>
    <message>
        <source>Confirmed to sound</source>
        <translation>确认到出声</translation>
    </message>
    <message>
        <source>One prefill call of the language model while you speak; it delays no reply.</source>
        <translation>您说话期间语言模型的一次预填充调用；不会推迟回复。</translation>
    </message>
    <message>
        <source>Prefill of the tokens that were left when the turn was committed, as in the waterfall.</source>
        <translation>轮次提交时剩余词元的预填充，与瀑布图中一致。</translation>
    </message>
    <message>
        <source>End of turn confirmed → first sample of the reply is handed to the device. A reply that was ready takes no time.</source>
        <translation>确定您已说完 → 回复的第一个采样交给设备。提前生成的回复无需等待。</translation>
    </message>
    <message>
        <source>Voice to voice</source>
        <translation>声到声</translation>
    </message>
    <message>
        <source>while speaking</source>
        <translation>说话期间</translation>
    </message>
    <message>
        <source>at commit</source>
        <translation>提交时</translation>
    </message>
    <message>
        <source>tokens at commit</source>
        <translation>提交时词元</translation>
    </message>
    <message>
        <source>vocoder</source>
        <translation>声码器</translation>
    </message>
    <message>
        <source>total</source>
        <translation>整体</translation>
    </message>
    <message>
        <source>steady</source>
        <translation>稳态</translation>
    </message>
    <message>
        <source>Vocoder per chunk</source>
        <translation>声码器（每块）</translation>
    </message>
    <message>
        <source>RTF, real-time factor</source>
        <translation>RTF，实时率</translation>
    </message>
    <message>
        <source>Response time</source>
        <translation>响应时间</translation>
    </message>
    <message>
        <source>Decode step and memory</source>
        <translation>解码步与内存</translation>
    </message>
    <message>
        <source>Triangles at the upper edge mark values off the scale.</source>
        <translation>上边缘的三角形表示超出刻度的值。</translation>
    </message>
    <message>
        <source>Bars reach from the smallest to the largest.</source>
        <translation>竖线从最小值到最大值。</translation>
    </message>
    <message>
        <source>Per turn, in ms: at the commit, and the median of the calls while you speak; tokens at commit on the right.</source>
        <translation>按轮次，毫秒：提交时，以及您说话期间各次调用的中位数；右侧为提交时词元数。</translation>
    </message>
    <message>
        <source>Per turn, median of its chunks in ms: vocoder and token2mel.</source>
        <translation>按轮次，各块的中位数，毫秒：声码器与 token2mel。</translation>
    </message>
    <message>
        <source>Per turn. Dashed line: real time; below it a reply is generated faster than it is played.</source>
        <translation>按轮次。虚线为实时；低于它表示生成快于播放。</translation>
    </message>
    <message>
        <source>Per turn, in ms; dashed p50, dotted p95.</source>
        <translation>按轮次，毫秒；虚线为 p50，点线为 p95。</translation>
    </message>
    <message>
        <source>Per turn: median decode step of the language model in ms on the left, memory in use in GB on the right.</source>
        <translation>按轮次：左侧为语言模型解码步耗时的中位数，毫秒；右侧为已用内存，GB。</translation>
    </message>
    <message>
        <source>Generated audio not yet played, in ms, over the last 30 seconds.</source>
        <translation>最近 30 秒内已生成但尚未播放的音频，毫秒。</translation>
    </message>
    <message>
        <source>▼ interrupted, ▲ resumed, ✕ cut.</source>
        <translation>▼ 被打断，▲ 继续，✕ 截断。</translation>
    </message>
    <message>
        <source>turn</source>
        <translation>轮次</translation>
    </message>
    <message>
        <source>time in ms</source>
        <translation>时间（ms）</translation>
    </message>
    <message>
        <source>ratio</source>
        <translation>比值</translation>
    </message>
    <message>
        <source>real time</source>
        <translation>实时</translation>
    </message>
    <message>
        <source>Prefill at commit</source>
        <translation>提交时预填充</translation>
    </message>
    <message>
        <source>Decode, first chunk</source>
        <translation>解码（首块）</translation>
    </message>
    <message>
        <source>token2mel, first chunk</source>
        <translation>token2mel（首块）</translation>
    </message>
    <message>
        <source>Vocoder, first chunk</source>
        <translation>声码器（首块）</translation>
    </message>
    <message>
        <source>Decode steps until the speech codes of the first chunk are complete.</source>
        <translation>直到首块语音码完整为止的解码步。</translation>
    </message>
    <message>
        <source>Flow matching: speech codes of the first chunk to mel frames.</source>
        <translation>流匹配：首块语音码到梅尔帧。</translation>
    </message>
    <message>
        <source>Mel frames of the first chunk to samples.</source>
        <translation>首块梅尔帧到采样。</translation>
    </message>
    <message>
        <source>Waits in the silence until it is sure that you have finished.</source>
        <translation>在静音中等待，直到确定您已说完。</translation>
    </message>
    <message>
        <source>The language model reads the end of your question; the rest it read while you spoke.</source>
        <translation>语言模型读取问题的结尾；其余部分在您说话时已读完。</translation>
    </message>
    <message>
        <source>The language model writes the first speech codes, one per step.</source>
        <translation>语言模型逐步写出最初的语音码，每步一个。</translation>
    </message>
    <message>
        <source>Flow matching turns these codes into a mel spectrogram.</source>
        <translation>流匹配把这些语音码变成梅尔频谱。</translation>
    </message>
    <message>
        <source>The vocoder turns the mel spectrogram into sound.</source>
        <translation>声码器把梅尔频谱变成声音。</translation>
    </message>
    <message>
        <source>The server makes the first sound of the reply.</source>
        <translation>服务器生成回复的第一段声音。</translation>
    </message>
    <message>
        <source>Question and reply travel to the server and back.</source>
        <translation>问题与回复在本机与服务器之间往返。</translation>
    </message>
    <message>
        <source>Holds the first sound back for a moment, so that the reply does not stutter.</source>
        <translation>把第一段声音稍作保留，使回复不会卡顿。</translation>
    </message>
    <message>
        <source>The sound card plays its next block.</source>
        <translation>声卡播放下一个数据块。</translation>
    </message>
    <message>
        <source>Probability at a pause that you have finished.</source>
        <translation>停顿时您已说完的概率。</translation>
    </message>
    <message>
        <source>Prefill while speaking</source>
        <translation>说话期间预填充</translation>
    </message>
    <message>
        <source>token2mel per chunk</source>
        <translation>token2mel（每块）</translation>
    </message>
    <message>
        <source>RTF total</source>
        <translation>RTF 整体</translation>
    </message>
    <message>
        <source>RTF steady</source>
        <translation>RTF 稳态</translation>
    </message>
    <message>
        <source>First-chunk ratio</source>
        <translation>首块比</translation>
    </message>
    <message>
        <source>Memory</source>
        <translation>内存</translation>
    </message>
    <message>
        <source>Playback buffer</source>
        <translation>播放缓冲</translation>
    </message>
    <message>
        <source>Tokens left to prefill when the turn is committed; the others were prefilled while you spoke.</source>
        <translation>轮次提交时还需预填充的词元；其余的在您说话时已完成。</translation>
    </message>
    <message>
        <source>One decode step of the language model: one position of text or speech.</source>
        <translation>语言模型的一个解码步：一个文本或语音位置。</translation>
    </message>
    <message>
        <source>Flow matching, speech codes to mel frames, per chunk.</source>
        <translation>流匹配，语音码到梅尔帧，按块计。</translation>
    </message>
    <message>
        <source>Mel frames to samples, per chunk.</source>
        <translation>梅尔帧到音频采样，按块计。</translation>
    </message>
    <message>
        <source>Length of the audio in a chunk.</source>
        <translation>一块所产生音频的长度。</translation>
    </message>
    <message>
        <source>Time to first audio: commit of the turn → first sample of the reply is ready.</source>
        <translation>首音时间：轮次提交 → 回复的首个采样就绪。</translation>
    </message>
    <message>
        <source>Last sample of your speech → commit of the turn.</source>
        <translation>您说话的最后一个采样 → 轮次提交。</translation>
    </message>
    <message>
        <source>Last sample of your speech → first sample of the reply at the device, its latency included.</source>
        <translation>您说话的最后一个采样 → 回复的首个采样到达设备，含设备延迟。</translation>
    </message>
    <message>
        <source>Real-time factor of a complete reply: its wall time / its audio. Below 1 is faster than real time.</source>
        <translation>整个回复的实时率：耗时 / 音频时长。小于 1 即快于实时。</translation>
    </message>
    <message>
        <source>Wall time per chunk after the first / audio of the chunk. Below 1, playback never runs dry.</source>
        <translation>首块之后每块的耗时 / 该块音频时长。小于 1 时播放不会断流。</translation>
    </message>
    <message>
        <source>TTFA / audio of the first chunk. Not a real-time factor: it includes the wait for that chunk.</source>
        <translation>TTFA / 首块音频时长。它包含等待首块的时间，不是实时率。</translation>
    </message>
    <message>
        <source>Memory in use at the end of a reply: GPU memory of all programs, as the driver counts it; without a GPU, the main memory of the engine process.</source>
        <translation>回复结束时已用的内存：GPU 上所有程序占用的显存，由驱动统计；没有 GPU 时为引擎进程占用的主内存。</translation>
    </message>
    <message>
        <source>Generated reply audio that is not yet played.</source>
        <translation>已生成但尚未播放的回复音频。</translation>
    </message>
    <message>
        <source>over the last 30 seconds</source>
        <translation>最近 30 秒</translation>
    </message>
    <message>
        <source>Playback hold</source>
        <translation>播放缓冲等待</translation>
    </message>
    <message>
        <source>First sample ready → start of playback: deliberate buffering, so that the reply does not stutter.</source>
        <translation>首个样本就绪 → 开始播放：有意的缓冲，以免回复卡顿。</translation>
    </message>
    <message>
        <source>Start of playback → first sample at the loudspeaker: the next block and the latency of the device.</source>
        <translation>开始播放 → 首个样本到达扬声器：等待设备的下一个数据块，加上设备延迟。</translation>
    </message>
    <message>
        <source>Lighter bars: before the end of your turn was confirmed.</source>
        <translation>浅色条：在确定您说完之前完成的工作。</translation>
    </message>
    <message>
        <source>Server</source>
        <translation>服务器</translation>
    </message>
    <message>
        <source>Network</source>
        <translation>网络</translation>
    </message>
    <message>
        <source>Request → first audio, without the network: the time the server took.</source>
        <translation>请求 → 首个音频，不含网络：服务器所用时间。</translation>
    </message>
    <message>
        <source>Request → first audio, minus the server&apos;s own time to first audio; if the server does not report that, the round trip of a ping.</source>
        <translation>请求 → 首个音频，减去服务器自身的首音频时间；若服务器不报告，则为一次 ping 的往返时间。</translation>
    </message>
    <message>
        <source>token</source>
        <translation>词元</translation>
    </message>
    <message>
        <source>values in the last %2 turns: %1</source>
        <translation>最近 %2 轮中的值：%1 个</translation>
    </message>
    <message>
        <source>Latency</source>
        <translation>延迟</translation>
    </message>
</context>
<context>
    <name>Destination</name>
    <message>
        <source>%1 (this computer)</source>
        <translation>%1（本机）</translation>
    </message>
    <message>
        <source>%1 (TLS)</source>
        <comment>the connection is encrypted</comment>
        <translation>%1（TLS）</translation>
    </message>
    <message>
        <source>%1 (not encrypted)</source>
        <translation>%1（未加密）</translation>
    </message>
</context>
<context>
    <name>DetachedView</name>
    <message>
        <source>Latency</source>
        <translation>延迟</translation>
    </message>
</context>
<context>
    <name>DeviceBox</name>
    <message>
        <source>%1 (not connected)</source>
        <translation>%1（未连接）</translation>
    </message>
    <message>
        <source>In use: %1</source>
        <translation>正在使用：%1</translation>
    </message>
    <message>
        <source>%1: %2</source>
        <translation>%1：%2</translation>
    </message>
</context>
<context>
    <name>DeviceChoice</name>
    <message>
        <source>Processor</source>
        <translation>处理器</translation>
    </message>
    <message>
        <source>Also compress tails, keys and values</source>
        <translation>同时压缩尾部层、键和值</translation>
    </message>
    <message>
        <source>%1: %2, %3</source>
        <translation>%1：%2，%3</translation>
    </message>
    <message>
        <source>This device is not available.</source>
        <translation>此设备不可用。</translation>
    </message>
    <message>
        <source>The model needs about %1 of %2 of memory.</source>
        <translation>模型约占用 %1 内存，共 %2。</translation>
    </message>
    <message>
        <source>The model needs about %1, but there are only %2 of memory. Choose a smaller model or weight format.</source>
        <translation>模型约需 %1，而内存只有 %2：请选择更小的模型或权重格式。</translation>
    </message>
    <message>
        <source>Set by the TensorRT-LLM engine: weights, keys and values.</source>
        <translation>由 TensorRT-LLM 引擎决定：权重以及键和值的格式。</translation>
    </message>
    <message>
        <source>Set by the TensorRT-LLM engine: weights, keys and values; and the first GPU as device.</source>
        <translation>由 TensorRT-LLM 引擎决定：权重以及键和值的格式；设备为第一块 GPU。</translation>
    </message>
</context>
<context>
    <name>EnginePage</name>
    <message>
        <source>Folder of the TensorRT-LLM engine</source>
        <translation>TensorRT-LLM 引擎的文件夹</translation>
    </message>
    <message>
        <source>Python that runs the engine</source>
        <translation>运行引擎的 Python</translation>
    </message>
    <message>
        <source>The Python of this program</source>
        <translation>本程序自带的 Python</translation>
    </message>
    <message>
        <source>&amp;Language model</source>
        <translation>语言模型(&amp;L)</translation>
    </message>
    <message>
        <source>&amp;Engine folder</source>
        <translation>引擎文件夹(&amp;E)</translation>
    </message>
    <message>
        <source>&amp;Python</source>
        <translation>&amp;Python</translation>
    </message>
    <message>
        <source>TensorRT-LLM runs an engine that was built from the model for the GPU of this computer. The engine fixes the formats of weights, keys and values.</source>
        <translation>TensorRT-LLM 运行为本机 GPU 从模型构建的引擎。权重格式以及键和值的格式在构建时已固定。</translation>
    </message>
    <message>
        <source>Runs model and codec in a separate process with this interpreter, such as ~/moss-trt/bin/python with TensorRT-LLM.</source>
        <translation>在该解释器的环境中（例如装有 TensorRT-LLM 的 ~/moss-trt/bin/python）以单独的进程运行模型和编解码器。</translation>
    </message>
    <message>
        <source>Checking …</source>
        <translation>正在检查……</translation>
    </message>
    <message>
        <source>Choose the folder of an engine.</source>
        <translation>请选择引擎的文件夹。</translation>
    </message>
    <message>
        <source>This folder contains no engine: %1 or %2 is missing.</source>
        <translation>此文件夹中没有引擎：缺少 %1 或 %2。</translation>
    </message>
    <message>
        <source>The engine could not be checked.</source>
        <translation>无法检查该引擎。</translation>
    </message>
    <message>
        <source>%1 is selected on the Model page, and PyTorch runs it.</source>
        <translation>“模型”页面选择的是 %1，由 PyTorch 运行。</translation>
    </message>
    <message>
        <source>Built from %1 with TensorRT-LLM %2: %3. %4, up to %5 positions per conversation.</source>
        <translation>由 %1 用 TensorRT-LLM %2 构建：%3。%4，每段对话最多 %5 个位置。</translation>
    </message>
    <message>
        <source>an unknown model</source>
        <translation>未知模型</translation>
    </message>
    <message>
        <source>This program has no TensorRT-LLM. Choose the Python of an environment that has it.</source>
        <translation>本程序不含 TensorRT-LLM。请选择装有它的环境中的 Python。</translation>
    </message>
    <message>
        <source>This file does not exist or cannot be executed.</source>
        <translation>该文件不存在或无法执行。</translation>
    </message>
    <message>
        <source>This Python cannot be used. %1</source>
        <translation>此 Python 不可用。%1</translation>
    </message>
    <message>
        <source>MOSS Voice is not installed in that environment.</source>
        <translation>该环境中没有安装 MOSS Voice。</translation>
    </message>
    <message>
        <source>This Python lacks packages: %1.</source>
        <translation>该环境缺少软件包：%1。</translation>
    </message>
    <message>
        <source>TensorRT-LLM is not installed in that environment.</source>
        <translation>该环境中没有安装 TensorRT-LLM。</translation>
    </message>
    <message>
        <source>This program has version %1. Install the same version in that environment.</source>
        <translation>本程序的版本是 %1：请在该环境中安装相同的版本。</translation>
    </message>
    <message>
        <source>Created by &quot;moss-voice trt build&quot;</source>
        <translation>由 moss-voice trt build 生成</translation>
    </message>
</context>
<context>
    <name>EngineSwitch</name>
    <message>
        <source>%1 is ready. It does not know the conversation so far.</source>
        <translation>%1 已就绪。它不知道之前说过的内容。</translation>
    </message>
    <message>
        <source>%1 is ready.</source>
        <translation>%1 已就绪。</translation>
    </message>
</context>
<context>
    <name>ErrorBanner</name>
    <message>
        <source>%1 more</source>
        <translation>另有 %1 条</translation>
    </message>
    <message>
        <source>Error</source>
        <translation>错误</translation>
    </message>
    <message>
        <source>Dismiss</source>
        <translation>关闭</translation>
    </message>
    <message>
        <source>Dismiss the error</source>
        <translation>关闭错误提示</translation>
    </message>
</context>
<context>
    <name>Export</name>
    <message>
        <source>Timings as CSV</source>
        <translation>计时导出为 CSV</translation>
    </message>
    <message>
        <source>Timings as Chrome trace</source>
        <translation>计时导出为 Chrome trace</translation>
    </message>
    <message>
        <source>Latency view as picture</source>
        <translation>延迟视图图片</translation>
    </message>
</context>
<context>
    <name>FileField</name>
    <message>
        <source>Browse …</source>
        <translation>浏览……</translation>
    </message>
</context>
<context>
    <name>FlowStepsRow</name>
    <message>
        <source>Flow steps</source>
        <translation>流匹配步数</translation>
    </message>
    <message>
        <source>Steps of flow matching for each chunk of speech, from the next turn on. More steps sound cleaner and take longer.</source>
        <translation>每段语音的流匹配步数，从下一轮起生效。步数越多声音越干净，也越慢。</translation>
    </message>
    <message>
        <source>%1 from the next turn on</source>
        <translation>%1，下一轮起生效</translation>
    </message>
    <message>
        <source>%1 (bundle default)</source>
        <translation>%1（按模型包设定）</translation>
    </message>
    <message>
        <source>No spoken reply with %1 yet</source>
        <translation>%1 步尚无语音回复</translation>
    </message>
    <message>
        <source>RTF %1 with %2</source>
        <translation>RTF %1（%2 步）</translation>
    </message>
    <message>
        <source>%1 with %2</source>
        <translation>%1（%2 步）</translation>
    </message>
</context>
<context>
    <name>GpuPage</name>
    <message>
        <source>Cancel</source>
        <translation>取消</translation>
    </message>
    <message>
        <source>Remove …</source>
        <translation>移除 …</translation>
    </message>
    <message>
        <source>GPU</source>
        <translation>GPU</translation>
    </message>
    <message>
        <source>The program includes PyTorch for the processor. Large models need an NVIDIA GPU and the PyTorch build for it, which is downloaded from PyPI, verified, and tested before it is used. Interrupted downloads resume.</source>
        <translation>程序自带处理器版 PyTorch。大模型需要 NVIDIA GPU 及对应的 PyTorch：从 PyPI 下载，经过校验和测试后才会使用。中断的下载可以继续。</translation>
    </message>
    <message>
        <source>Check and test again</source>
        <translation>重新检查并测试</translation>
    </message>
    <message>
        <source>Install</source>
        <translation>安装</translation>
    </message>
    <message>
        <source>Checking …</source>
        <translation>正在查看 …</translation>
    </message>
    <message>
        <source>%1 is in use.</source>
        <translation>正在使用 %1。</translation>
    </message>
    <message>
        <source>%1 is installed. Restart the program to use it.</source>
        <translation>%1 已安装。重新启动程序后使用。</translation>
    </message>
    <message>
        <source>Not used: %1.</source>
        <translation>未使用：%1。</translation>
    </message>
    <message>
        <source>Installed, but not tested successfully.</source>
        <translation>已安装，但未通过测试。</translation>
    </message>
    <message>
        <source>Not installed. Download: %1; on disk: %2.</source>
        <translation>未安装。需下载 %1，占用磁盘 %2。</translation>
    </message>
    <message>
        <source>Removing …</source>
        <translation>正在移除 …</translation>
    </message>
    <message>
        <source>Downloading …</source>
        <translation>正在下载 …</translation>
    </message>
    <message>
        <source>Unpacking …</source>
        <translation>正在解包 …</translation>
    </message>
    <message>
        <source>Testing …</source>
        <translation>正在测试 …</translation>
    </message>
    <message>
        <source>Starting …</source>
        <translation>正在启动 …</translation>
    </message>
    <message>
        <source>%1 of %2</source>
        <translation>%1 / %2</translation>
    </message>
    <message>
        <source>No GPU was found.</source>
        <translation>未找到 GPU。</translation>
    </message>
    <message>
        <source>Slower without Triton: %1.</source>
        <translation>没有 Triton，速度较慢：%1。</translation>
    </message>
    <message>
        <source>Remove PyTorch for the GPU?</source>
        <translation>移除 GPU 版 PyTorch？</translation>
    </message>
    <message>
        <source>From its next start on, the program runs on the processor.</source>
        <translation>程序从下次启动起在处理器上运行。</translation>
    </message>
    <message>
        <source>Remove</source>
        <translation>移除</translation>
    </message>
</context>
<context>
    <name>GuideDialog</name>
    <message>
        <source>Welcome to MOSS Voice</source>
        <translation>欢迎使用 MOSS Voice</translation>
    </message>
    <message>
        <source>Sound</source>
        <translation>声音</translation>
    </message>
    <message>
        <source>%1 Choose microphone and loudspeaker, and test them.</source>
        <translation>%1请选择麦克风和扬声器，并测试它们。</translation>
    </message>
    <message>
        <source>Everything you say stays on this computer.</source>
        <translation>您说的一切都留在此电脑上。</translation>
    </message>
    <message>
        <source>What you say goes to the server %1.</source>
        <translation>您说的话会发送到服务器 %1。</translation>
    </message>
    <message>
        <source>Model</source>
        <translation>模型</translation>
    </message>
    <message>
        <source>nano is included and runs on any computer; it knows a small domain, in English. MOSS-Speech knows far more and needs a GPU to answer in time. You can talk to nano while it downloads.</source>
        <translation>nano 已随程序附带，可在任何电脑上运行；它只懂一个小领域，使用英语。MOSS-Speech 懂得多得多，但需要 GPU 才能及时回答。下载期间您可以继续与 nano 对话。</translation>
    </message>
    <message>
        <source>Ready</source>
        <translation>完成</translation>
    </message>
    <message>
        <source>You can change all of this in the settings and open this guide again from the help menu.</source>
        <translation>以上各项都可在设置中更改，本指南可在帮助菜单中再次打开。</translation>
    </message>
    <message>
        <source>Skip</source>
        <translation>跳过</translation>
    </message>
    <message>
        <source>Back</source>
        <translation>上一步</translation>
    </message>
    <message>
        <source>Step %1 of %2</source>
        <translation>第 %1 步，共 %2 步</translation>
    </message>
    <message>
        <source>Finish</source>
        <translation>完成</translation>
    </message>
    <message>
        <source>Next</source>
        <translation>下一步</translation>
    </message>
    <message>
        <source>system default</source>
        <translation>由系统选择</translation>
    </message>
    <message>
        <source>Microphone</source>
        <translation>麦克风</translation>
    </message>
    <message>
        <source>Loudspeaker</source>
        <translation>扬声器</translation>
    </message>
    <message>
        <source>Device</source>
        <translation>设备</translation>
    </message>
    <message>
        <source>Weights</source>
        <translation>权重</translation>
    </message>
    <message>
        <source>%1: %2</source>
        <translation>%1：%2</translation>
    </message>
</context>
<context>
    <name>GuideSoundPage</name>
    <message>
        <source>Default microphone</source>
        <translation>默认麦克风</translation>
    </message>
    <message>
        <source>Default loudspeaker</source>
        <translation>默认扬声器</translation>
    </message>
    <message>
        <source>&amp;Microphone</source>
        <translation>麦克风(&amp;M)</translation>
    </message>
    <message>
        <source>&amp;Loudspeaker</source>
        <translation>扬声器(&amp;L)</translation>
    </message>
    <message>
        <source>Test</source>
        <translation>测试</translation>
    </message>
    <message>
        <source>Records 3 seconds from the microphone, plays them back and discards them.</source>
        <translation>录制麦克风 3 秒，播放给您听，随即丢弃。</translation>
    </message>
    <message>
        <source>Speech</source>
        <translation>语音</translation>
    </message>
    <message>
        <source>During the test, the bar passes the line when speech is heard.</source>
        <translation>测试麦克风时，听到说话声，光条会越过标线。</translation>
    </message>
</context>
<context>
    <name>HeaderBar</name>
    <message>
        <source>New conversation</source>
        <translation>新对话</translation>
    </message>
    <message>
        <source>中文</source>
        <comment>the language that the button switches to</comment>
        <translation>English</translation>
    </message>
    <message>
        <source>Forget this conversation and start a new one</source>
        <translation>忘掉当前对话，开始新的对话</translation>
    </message>
    <message>
        <source>Switch the language</source>
        <translation>切换语言</translation>
    </message>
    <message>
        <source>Switch between light and dark</source>
        <translation>切换浅色与深色</translation>
    </message>
    <message>
        <source>Settings</source>
        <translation>设置</translation>
    </message>
    <message>
        <source>Conversation as audio …</source>
        <translation>将对话保存为声音……</translation>
    </message>
    <message>
        <source>Timings as CSV …</source>
        <translation>计时导出为 CSV……</translation>
    </message>
    <message>
        <source>Timings as Chrome trace …</source>
        <translation>计时导出为 Chrome trace……</translation>
    </message>
    <message>
        <source>Latency view in its own window</source>
        <translation>在独立窗口中显示延迟视图</translation>
    </message>
    <message>
        <source>%1 (F9); in its own window: Shift+F9 or right-click</source>
        <translation>%1 (F9)；独立窗口：Shift+F9 或单击右键</translation>
    </message>
    <message>
        <source>%1 · loaded in %2 s</source>
        <translation>%1 · %2 秒加载完成</translation>
    </message>
    <message>
        <source>%1 · on the server %2</source>
        <translation>%1 · 在服务器 %2 上</translation>
    </message>
    <message>
        <source>Small window</source>
        <translation>小窗口</translation>
    </message>
    <message>
        <source>Help</source>
        <translation>帮助</translation>
    </message>
    <message>
        <source>Latency view as picture …</source>
        <translation>将延迟视图存为图片……</translation>
    </message>
    <message>
        <source>Hide the latency view</source>
        <translation>隐藏延迟视图</translation>
    </message>
    <message>
        <source>Show the latency view</source>
        <translation>显示延迟视图</translation>
    </message>
    <message>
        <source>Conversations</source>
        <translation>对话记录</translation>
    </message>
    <message>
        <source>Conversation as text …</source>
        <translation>将对话保存为文字……</translation>
    </message>
    <message>
        <source>Copy the conversation</source>
        <translation>复制对话</translation>
    </message>
    <message>
        <source>Export</source>
        <translation>导出</translation>
    </message>
</context>
<context>
    <name>HelpMenu</name>
    <message>
        <source>Save report</source>
        <translation>保存报告</translation>
    </message>
    <message>
        <source>Text (*.txt)</source>
        <translation>文本 (*.txt)</translation>
    </message>
    <message>
        <source>The report is being written …</source>
        <translation>正在写入报告……</translation>
    </message>
    <message>
        <source>The log is in %1.</source>
        <translation>日志位于 %1。</translation>
    </message>
    <message>
        <source>About MOSS Voice</source>
        <translation>关于 MOSS Voice</translation>
    </message>
    <message>
        <source>A speech-to-speech assistant that runs on this computer. What you say leaves it only if you choose a server.</source>
        <translation>在这台电脑上运行的语音助手。只有当您选择了服务器时，您说的话才会离开这台电脑。</translation>
    </message>
    <message>
        <source>Licence: Apache 2.0</source>
        <translation>许可证：Apache 2.0</translation>
    </message>
    <message>
        <source>It uses Qt under the GNU Lesser General Public License, version 3 (source: qt.io).</source>
        <translation>本程序依据 GNU 宽通用公共许可证第 3 版（LGPLv3）使用 Qt（源代码：qt.io）。</translation>
    </message>
    <message>
        <source>All parts and their licences are listed in %1.</source>
        <translation>全部组成部分及其许可证列于 %1。</translation>
    </message>
    <message>
        <source>Keyboard shortcuts</source>
        <translation>键盘快捷键</translation>
    </message>
    <message>
        <source>Save report for troubleshooting …</source>
        <translation>保存故障排查报告……</translation>
    </message>
    <message>
        <source>Open log folder</source>
        <translation>打开日志文件夹</translation>
    </message>
    <message>
        <source>The report is in %1. Read it before you send it to someone.</source>
        <translation>报告位于 %1。发给他人之前请先阅读。</translation>
    </message>
    <message>
        <source>The report could not be written.</source>
        <translation>无法写入报告。</translation>
    </message>
    <message>
        <source>Guide …</source>
        <translation>使用指南……</translation>
    </message>
</context>
<context>
    <name>HistoryDialog</name>
    <message>
        <source>(speech)</source>
        <translation>（语音）</translation>
    </message>
    <message>
        <source>%1 in %2</source>
        <translation>%1，位于 %2</translation>
    </message>
    <message>
        <source>No conversations in %1. Choose what to keep on the General page of the settings.</source>
        <translation>%1 中没有对话。请在设置的“常规”页选择保留的内容。</translation>
    </message>
    <message>
        <source>Conversation as text</source>
        <translation>将对话保存为文字</translation>
    </message>
    <message>
        <source>Markdown (*.md);;Text (*.txt)</source>
        <translation>Markdown (*.md);;文本 (*.txt)</translation>
    </message>
    <message>
        <source>You</source>
        <translation>您</translation>
    </message>
    <message>
        <source>Conversation as audio</source>
        <translation>将对话保存为声音</translation>
    </message>
    <message>
        <source>The present conversation ends with it, and a new one begins.</source>
        <translation>当前对话将随之结束，并开始新的对话。</translation>
    </message>
    <message>
        <source>Conversations</source>
        <translation>对话记录</translation>
    </message>
    <message>
        <source>Date</source>
        <translation>日期</translation>
    </message>
    <message>
        <source>Length</source>
        <translation>时长</translation>
    </message>
    <message>
        <source>Turns</source>
        <translation>轮次</translation>
    </message>
    <message>
        <source>Size</source>
        <translation>大小</translation>
    </message>
    <message>
        <source>No conversation has all of these words.</source>
        <translation>没有对话同时包含这些词。</translation>
    </message>
    <message>
        <source>Continue</source>
        <translation>继续</translation>
    </message>
    <message>
        <source>Rename</source>
        <translation>重命名</translation>
    </message>
    <message>
        <source>Rename this conversation (F2)</source>
        <translation>重命名此对话 (F2)</translation>
    </message>
    <message>
        <source>Open in player</source>
        <translation>在播放器中打开</translation>
    </message>
    <message>
        <source>Export text …</source>
        <translation>导出文字……</translation>
    </message>
    <message>
        <source>Export audio …</source>
        <translation>导出声音……</translation>
    </message>
    <message>
        <source>Delete …</source>
        <translation>删除……</translation>
    </message>
    <message>
        <source>Delete all …</source>
        <translation>全部删除……</translation>
    </message>
    <message>
        <source>FLAC (*.flac);;WAV (*.wav)</source>
        <translation>FLAC (*.flac);;WAV (*.wav)</translation>
    </message>
    <message>
        <source>The sound is being written …</source>
        <translation>正在写入声音……</translation>
    </message>
    <message>
        <source>Renamed.</source>
        <translation>已重命名。</translation>
    </message>
    <message>
        <source>Delete</source>
        <translation>删除</translation>
    </message>
    <message>
        <source>The conversation was deleted.</source>
        <translation>已删除该对话。</translation>
    </message>
    <message>
        <source>Delete all</source>
        <translation>全部删除</translation>
    </message>
    <message>
        <source>Delete all kept conversations?</source>
        <translation>删除所有保留的对话？</translation>
    </message>
    <message>
        <source>All conversations were deleted.</source>
        <translation>已删除所有对话。</translation>
    </message>
    <message>
        <source>Title</source>
        <translation>标题</translation>
    </message>
    <message>
        <source>Search titles and texts</source>
        <translation>搜索标题和文本</translation>
    </message>
    <message>
        <source>Search</source>
        <translation>搜索</translation>
    </message>
    <message>
        <source>Delete this conversation?</source>
        <translation>删除此对话？</translation>
    </message>
    <message>
        <source>This cannot be undone.</source>
        <translation>此操作无法撤消。</translation>
    </message>
    <message>
        <source>spoke %1 s</source>
        <translation>语音 %1 秒</translation>
    </message>
    <message>
        <source>Unreadable conversations that are not listed: %1.</source>
        <translation>无法读取、未列出的对话：%1 个。</translation>
    </message>
    <message>
        <source>Damaged entries left out of this conversation: %1.</source>
        <translation>这个对话中略去的损坏记录：%1 条。</translation>
    </message>
</context>
<context>
    <name>KeepingPage</name>
    <message>
        <source>&amp;Keep conversations</source>
        <translation>保留对话(&amp;K)</translation>
    </message>
    <message>
        <source>Off by default. Kept conversations continue after a restart and are listed under Conversations. Sound is recorded in stereo, even while nobody speaks. Only your user account can read the files, and none of them leaves this computer.</source>
        <translation>默认关闭。保留的对话在重新启动后继续，并列在“对话记录”中。声音以立体声录制，无人说话时也会录制。只有您的用户帐户可以读取这些文件，任何文件都不会离开本机。</translation>
    </message>
    <message>
        <source>no</source>
        <translation>不保留</translation>
    </message>
    <message>
        <source>text, decisions and timings</source>
        <translation>文字、判断和计时</translation>
    </message>
    <message>
        <source>everything, with the sound</source>
        <translation>全部，包括声音</translation>
    </message>
    <message>
        <source>Folder of the conversations</source>
        <translation>对话的文件夹</translation>
    </message>
    <message>
        <source>&amp;Folder</source>
        <translation>文件夹(&amp;F)</translation>
    </message>
    <message>
        <source>Conversations that are in another folder stay there.</source>
        <translation>其他文件夹中的对话留在原处。</translation>
    </message>
    <message>
        <source>On disk</source>
        <translation>占用空间</translation>
    </message>
    <message>
        <source>Open the folder</source>
        <translation>打开文件夹</translation>
    </message>
    <message>
        <source>Delete all conversations …</source>
        <translation>删除所有对话……</translation>
    </message>
    <message>
        <source>%1 kept, %2</source>
        <translation>已保留 %1 个，%2</translation>
    </message>
    <message>
        <source>A second window does not keep conversations.</source>
        <translation>第二个窗口不保留对话。</translation>
    </message>
    <message>
        <source>Give the complete path of a folder.</source>
        <translation>请输入文件夹的完整路径。</translation>
    </message>
    <message>
        <source>%1 is not a folder.</source>
        <translation>%1 不是文件夹。</translation>
    </message>
    <message>
        <source>You may not write to %1.</source>
        <translation>没有写入 %1 的权限。</translation>
    </message>
    <message>
        <source>Delete all</source>
        <translation>全部删除</translation>
    </message>
    <message>
        <source>Delete all kept conversations?</source>
        <translation>删除所有保留的对话？</translation>
    </message>
    <message>
        <source>This cannot be undone.</source>
        <translation>此操作无法撤消。</translation>
    </message>
</context>
<context>
    <name>LatencyView</name>
    <message>
        <source>Latency, live</source>
        <translation>实时延迟</translation>
    </message>
    <message>
        <source>Present</source>
        <translation>演示</translation>
    </message>
    <message>
        <source>Captions, waterfall and plots for a room, full screen (F11)</source>
        <translation>面向全场的字幕、瀑布图与图表，全屏显示（F11）</translation>
    </message>
    <message>
        <source>Clear</source>
        <translation>清空</translation>
    </message>
    <message>
        <source>Last turn: end of speech to first sound</source>
        <translation>上一轮：从说完到首个声音</translation>
    </message>
    <message>
        <source>no spoken reply yet</source>
        <translation>还没有语音回复</translation>
    </message>
    <message>
        <source>to the loudspeaker</source>
        <translation>到达扬声器</translation>
    </message>
    <message>
        <source>to the first sample</source>
        <translation>到首个采样</translation>
    </message>
    <message>
        <source>&lt;b&gt;%1 ms&lt;/b&gt; %2, %3 ms of it between the stages</source>
        <translation>&lt;b&gt;%1 ms&lt;/b&gt; %2，其中阶段之间 %3 ms</translation>
    </message>
    <message>
        <source>How often the computer slept or the server was unreachable, at the dotted lines of the plots. The times of such turns are in no figure.</source>
        <translation>电脑休眠或服务器无法访问的次数，见图中点线。这些轮次的时间不计入任何数字。</translation>
    </message>
    <message>
        <source>Reset figures, counters and exported timings</source>
        <translation>统计、计数与待导出的计时全部重新开始</translation>
    </message>
    <message>
        <source>to the start of playback</source>
        <translation>到开始播放</translation>
    </message>
    <message>
        <source>outages, not counted: %1</source>
        <translation>中断（不计入）：%1</translation>
    </message>
</context>
<context>
    <name>LatestExchange</name>
    <message>
        <source>You spoke %1 s</source>
        <translation>您说了 %1 秒</translation>
    </message>
    <message>
        <source>You speak …</source>
        <translation>您在说……</translation>
    </message>
</context>
<context>
    <name>LoadingBar</name>
    <message>
        <source>Preparing %1 …</source>
        <translation>正在准备 %1 …</translation>
    </message>
    <message>
        <source>Loading %1 …</source>
        <translation>正在加载 %1 …</translation>
    </message>
</context>
<context>
    <name>MainWindow</name>
    <message>
        <source>The question has %1 characters; the limit is %2.</source>
        <translation>问题有 %1 个字符；一次最多可问 %2 个。</translation>
    </message>
    <message>
        <source>Shorten it, or ask it in parts.</source>
        <translation>请缩短，或分几次提问。</translation>
    </message>
    <message>
        <source>Texts and plots: %1 %</source>
        <translation>文字与图表：%1 %</translation>
    </message>
    <message>
        <source>Window</source>
        <translation>窗口</translation>
    </message>
    <message>
        <source>Controls</source>
        <translation>控制</translation>
    </message>
    <message>
        <source>Second window</source>
        <translation>第二个窗口</translation>
    </message>
    <message>
        <source>This is a second window: it saves neither settings nor conversations.</source>
        <translation>这是第二个窗口：既不保存设置，也不保存对话。</translation>
    </message>
    <message>
        <source>The desktop no longer has a tray, so the window is shown again.</source>
        <translation>桌面的系统托盘已消失，因此重新显示窗口。</translation>
    </message>
</context>
<context>
    <name>ModelList</name>
    <message>
        <source>A bundle in another folder</source>
        <translation>其他文件夹中的模型包</translation>
    </message>
    <message>
        <source>Remove %1 from this computer?</source>
        <translation>要从此电脑删除 %1 吗？</translation>
    </message>
    <message>
        <source>It can be downloaded again.</source>
        <translation>之后可以重新下载。</translation>
    </message>
    <message>
        <source>Cancel the download of %1?</source>
        <translation>要取消下载 %1 吗？</translation>
    </message>
    <message>
        <source>The part that was downloaded will be deleted.</source>
        <translation>已下载的部分将被删除。</translation>
    </message>
    <message>
        <source>Downloaded and checked.</source>
        <translation>已下载并检查。</translation>
    </message>
    <message>
        <source>All files are intact.</source>
        <translation>所有文件均完好。</translation>
    </message>
    <message>
        <source>Download %1 although it fits on no GPU of this computer?</source>
        <translation>本机没有能容纳 %1 的 GPU，仍要下载吗？</translation>
    </message>
    <message>
        <source>About %1 will be downloaded and kept on disk.</source>
        <translation>将下载约 %1 并保存在磁盘上。</translation>
    </message>
</context>
<context>
    <name>ModelPage</name>
    <message>
        <source>Folder of the model bundle</source>
        <translation>模型包文件夹</translation>
    </message>
    <message>
        <source>The included bundle</source>
        <translation>程序自带的模型包</translation>
    </message>
    <message>
        <source>Recording of the voice to speak with</source>
        <translation>用来说话的声音的录音</translation>
    </message>
    <message>
        <source>The voice of the bundle</source>
        <translation>模型包自带的声音</translation>
    </message>
    <message>
        <source>File of the vocoder to speak with</source>
        <translation>用来说话的声码器文件</translation>
    </message>
    <message>
        <source>The vocoder of the bundle</source>
        <translation>模型包自带的声码器</translation>
    </message>
    <message>
        <source>Vo&amp;coder</source>
        <translation>声码器(&amp;C)</translation>
    </message>
    <message>
        <source>A BigVGAN that was trained on the mel of the bundle (assets/training/README.md).</source>
        <translation>针对该模型包的梅尔频谱训练的 BigVGAN（见 assets/training/README.md）。</translation>
    </message>
    <message>
        <source>Vocoders (*.safetensors)</source>
        <translation>声码器 (*.safetensors)</translation>
    </message>
    <message>
        <source>&amp;Voice</source>
        <translation>声音(&amp;V)</translation>
    </message>
    <message>
        <source>A WAV or FLAC file with at least 3.2 s of speech, of which the first 6 s are used. For bundles whose voice can be chosen.</source>
        <translation>至少含 3.2 秒语音的 WAV 或 FLAC 文件，使用其中前 6 秒；用于可以换声音的模型包。</translation>
    </message>
    <message>
        <source>Recordings (*.wav *.flac)</source>
        <translation>录音 (*.wav *.flac)</translation>
    </message>
    <message>
        <source>This folder has no bundle.toml. Choose another folder.</source>
        <translation>该文件夹中没有 bundle.toml，请另选。</translation>
    </message>
    <message>
        <source>%1 s of its speech are used.</source>
        <translation>使用其中 %1 秒语音。</translation>
    </message>
    <message>
        <source>&amp;Model</source>
        <translation>模型(&amp;M)</translation>
    </message>
    <message>
        <source>&amp;Device</source>
        <translation>设备(&amp;D)</translation>
    </message>
    <message>
        <source>&amp;Weights</source>
        <translation>权重(&amp;W)</translation>
    </message>
    <message>
        <source>On a GPU, fewer bits take less memory and are faster; native is the most accurate.</source>
        <translation>在 GPU 上，位数越少占用内存越少、速度越快；native 最准确。</translation>
    </message>
    <message>
        <source>On this computer it fits on %1 (%2) with %3 weights.</source>
        <translation>在此电脑上可用 %1（%2）运行，权重格式 %3。</translation>
    </message>
    <message>
        <source>No usable GPU of this computer has enough memory for it.</source>
        <translation>此电脑上没有程序可用且内存足够的 GPU。</translation>
    </message>
</context>
<context>
    <name>ModelRow</name>
    <message>
        <source>Pause</source>
        <translation>暂停</translation>
    </message>
    <message>
        <source>Check files</source>
        <translation>检查文件</translation>
    </message>
    <message>
        <source>Resume</source>
        <translation>继续下载</translation>
    </message>
    <message>
        <source>Download</source>
        <translation>下载</translation>
    </message>
    <message>
        <source>Remove</source>
        <translation>删除</translation>
    </message>
    <message>
        <source>Cancel</source>
        <translation>取消</translation>
    </message>
    <message>
        <source>Download: about %1; free on disk: %2. Licence: %3.</source>
        <translation>下载约 %1；磁盘剩余 %2。许可：%3。</translation>
    </message>
    <message>
        <source>Starting …</source>
        <translation>正在开始 …</translation>
    </message>
    <message>
        <source>%1 of %2 downloaded.</source>
        <translation>已下载 %1，共 %2。</translation>
    </message>
    <message>
        <source>Checking files …</source>
        <translation>正在检查文件 …</translation>
    </message>
    <message>
        <source>Deleting files …</source>
        <translation>正在删除文件 …</translation>
    </message>
    <message>
        <source>In use</source>
        <translation>使用中</translation>
    </message>
    <message>
        <source>Paused: %1 downloaded.</source>
        <translation>已暂停：已下载 %1。</translation>
    </message>
    <message>
        <source>weights without a licence file (the code of MOSS-Speech is Apache-2.0)</source>
        <translation>权重没有许可证文件（MOSS-Speech 的代码为 Apache-2.0）</translation>
    </message>
</context>
<context>
    <name>NoticeLine</name>
    <message>
        <source>Saved as %1.</source>
        <translation>已保存为 %1。</translation>
    </message>
    <message>
        <source>Open the folder</source>
        <translation>打开文件夹</translation>
    </message>
</context>
<context>
    <name>Presenter</name>
    <message>
        <source>Presentation</source>
        <translation>演示</translation>
    </message>
    <message>
        <source>From the end of your speech to the first sound</source>
        <translation>从您说完到第一个声音</translation>
    </message>
    <message>
        <source>Explain (E)</source>
        <translation>讲解 (E)</translation>
    </message>
    <message>
        <source>Explain each stage in one sentence</source>
        <translation>用一句话讲解每个阶段</translation>
    </message>
    <message>
        <source>Leave (Esc)</source>
        <translation>退出 (Esc)</translation>
    </message>
    <message>
        <source>Back to the ordinary window (Esc, F11)</source>
        <translation>返回普通窗口（Esc、F11）</translation>
    </message>
    <message>
        <source>Question</source>
        <translation>问题</translation>
    </message>
    <message>
        <source>Reply</source>
        <translation>回复</translation>
    </message>
    <message>
        <source>Ask something.</source>
        <translation>请提问。</translation>
    </message>
    <message>
        <source>%1 ms</source>
        <translation>%1 ms</translation>
    </message>
    <message>
        <source>%1 ms so far</source>
        <translation>目前 %1 ms</translation>
    </message>
</context>
<context>
    <name>Question</name>
    <message>
        <source>%1 no longer exists.</source>
        <translation>%1 已不存在。</translation>
    </message>
    <message>
        <source>Replace</source>
        <translation>替换</translation>
    </message>
    <message>
        <source>Replace %1?</source>
        <translation>替换 %1？</translation>
    </message>
    <message>
        <source>A file with this name already exists.</source>
        <translation>已有同名文件。</translation>
    </message>
    <message>
        <source>This desktop has no program that opens %1. Open it from another program.</source>
        <translation>此桌面没有可以打开 %1 的程序。请在其他程序中打开。</translation>
    </message>
</context>
<context>
    <name>ReplyBubble</name>
    <message>
        <source>thinking …</source>
        <translation>思考中……</translation>
    </message>
    <message>
        <source>%1 s</source>
        <translation>%1 秒</translation>
    </message>
    <message>
        <source>playing</source>
        <translation>播放中</translation>
    </message>
    <message>
        <source>cut off at the maximum length</source>
        <translation>已达最大长度</translation>
    </message>
    <message>
        <source>Play again</source>
        <translation>再听一遍</translation>
    </message>
    <message>
        <source>Play this reply again</source>
        <translation>再次播放这个回复</translation>
    </message>
    <message>
        <source>interrupted by you</source>
        <translation>被您打断</translation>
    </message>
    <message>
        <source>loudspeaker lost</source>
        <translation>扬声器已断开</translation>
    </message>
    <message>
        <source>%1 of %2 s</source>
        <translation>%1 / %2 秒</translation>
    </message>
    <message>
        <source>heard up to here</source>
        <translation>听到这里为止</translation>
    </message>
    <message>
        <source>cut here</source>
        <translation>在此中断</translation>
    </message>
    <message>
        <source>nothing was shown, so it is not remembered</source>
        <translation>什么也没有显示，因此不会被记住</translation>
    </message>
    <message>
        <source>nothing was heard, so it is not remembered</source>
        <translation>什么也没有听到，因此不会被记住</translation>
    </message>
    <message>
        <source>The conversation continues from what was heard. MOSS does not know the rest.</source>
        <translation>对话从听到的内容继续，MOSS 不知道其余部分。</translation>
    </message>
    <message>
        <source>The conversation continues from what was shown.</source>
        <translation>对话从已显示的内容继续。</translation>
    </message>
    <message>
        <source>The conversation continues as if this question had not been asked.</source>
        <translation>对话会像没有问过这个问题一样继续。</translation>
    </message>
    <message>
        <source>failed</source>
        <translation>失败</translation>
    </message>
    <message>
        <source>stopped</source>
        <translation>已停止</translation>
    </message>
    <message>
        <source>Copy, ask again, delete</source>
        <translation>复制、重新提问、删除</translation>
    </message>
</context>
<context>
    <name>SampleRow</name>
    <message>
        <source>%1 (nano declines)</source>
        <translation>%1 · nano 会拒答</translation>
    </message>
    <message>
        <source>Try</source>
        <translation>试试</translation>
    </message>
    <message>
        <source>Send this recording through the microphone path: %1</source>
        <translation>把这段录音送入麦克风通路：%1</translation>
    </message>
    <message>
        <source>Sample question: %1</source>
        <translation>示例问题：%1</translation>
    </message>
    <message>
        <source>Earlier samples</source>
        <translation>前面的示例</translation>
    </message>
    <message>
        <source>More samples</source>
        <translation>更多示例</translation>
    </message>
</context>
<context>
    <name>ServerPage</name>
    <message>
        <source>Kept in a file that only you can read. It is sent over an encrypted connection or to this computer only.</source>
        <translation>保存在只有您能读取的文件中，只通过加密连接发送，或只发送到本机。</translation>
    </message>
    <message>
        <source>Server &amp;address</source>
        <translation>服务器地址(&amp;A)</translation>
    </message>
    <message>
        <source>Server &amp;key</source>
        <translation>服务器密钥(&amp;K)</translation>
    </message>
    <message>
        <source>Server &amp;voice</source>
        <translation>服务器音色(&amp;V)</translation>
    </message>
    <message>
        <source>A voice that the server has, such as &quot;marin&quot;. Leave this empty for its own choice.</source>
        <translation>服务器提供的音色名称，例如“marin”。留空则由服务器决定。</translation>
    </message>
    <message>
        <source>A server that speaks OpenAI&apos;s Realtime protocol, such as &quot;moss-voice serve&quot;, generates the replies, and no model is loaded. It hears what you say. Leave this empty to use the model of the Model page.</source>
        <translation>由支持 OpenAI Realtime 协议的服务器（例如“moss-voice serve”）生成回复，本机不加载模型。服务器会听到您说的话。留空则使用“模型”页中的模型。</translation>
    </message>
</context>
<context>
    <name>SessionErrors</name>
    <message>
        <source>Look for devices again</source>
        <translation>重新查找设备</translation>
    </message>
    <message>
        <source>The session ended unexpectedly: %1</source>
        <translation>会话意外结束：%1</translation>
    </message>
    <message>
        <source>Close the window and restart the program. The log file has details.</source>
        <translation>请关闭窗口并重新启动程序。日志中有更多信息。</translation>
    </message>
    <message>
        <source>Open the settings</source>
        <translation>打开设置</translation>
    </message>
    <message>
        <source>This conversation goes on but is no longer kept. The next one is.</source>
        <translation>当前对话会继续，但不再保留；下一次对话会照常保留。</translation>
    </message>
    <message>
        <source>Choose another one on the Model or Engine page of the settings.</source>
        <translation>请在设置的“模型”或“引擎”页面中另选一个。</translation>
    </message>
    <message>
        <source>The engine chosen in the settings cannot be used: %1</source>
        <translation>无法使用设置中的引擎：%1</translation>
    </message>
    <message>
        <source>%1 answers instead. Check the Engine page of the settings.</source>
        <translation>现由 %1 代为回答。请检查设置的“引擎”页面。</translation>
    </message>
    <message>
        <source>The settings file was damaged. All settings are back to their defaults.</source>
        <translation>设置文件已损坏，因此设置已恢复为默认值。</translation>
    </message>
    <message>
        <source>The damaged file is kept as %1.</source>
        <translation>损坏的文件保留为 %1。</translation>
    </message>
</context>
<context>
    <name>SettingsActions</name>
    <message>
        <source>%1 is downloaded. Select it on the Model page of the settings.</source>
        <translation>%1 已下载。请在设置的“模型”页中选择它。</translation>
    </message>
    <message>
        <source>Stop using the TensorRT-LLM engine %1?</source>
        <translation>停止使用 TensorRT-LLM 引擎 %1？</translation>
    </message>
    <message>
        <source>%1 will answer instead.</source>
        <translation>将由 %1 代为回答。</translation>
    </message>
    <message>
        <source>PyTorch will load %1 instead.</source>
        <translation>将改用 PyTorch 加载 %1。</translation>
    </message>
    <message>
        <source>Stop using it</source>
        <translation>停止使用</translation>
    </message>
</context>
<context>
    <name>SettingsDialog</name>
    <message>
        <source>Settings</source>
        <translation>设置</translation>
    </message>
    <message>
        <source>Sound</source>
        <translation>声音</translation>
    </message>
    <message>
        <source>Conversation</source>
        <translation>对话</translation>
    </message>
    <message>
        <source>Talking</source>
        <translation>说话</translation>
    </message>
    <message>
        <source>Model</source>
        <translation>模型</translation>
    </message>
    <message>
        <source>GPU</source>
        <translation>GPU</translation>
    </message>
    <message>
        <source>Codec</source>
        <translation>编解码</translation>
    </message>
    <message>
        <source>General</source>
        <translation>常规</translation>
    </message>
    <message>
        <source>Engine</source>
        <translation>引擎</translation>
    </message>
</context>
<context>
    <name>SettingsPage</name>
    <message>
        <source>This needs the package websockets.</source>
        <translation>这需要软件包 websockets。</translation>
    </message>
</context>
<context>
    <name>ShortcutsDialog</name>
    <message>
        <source>Keyboard shortcuts</source>
        <translation>键盘快捷键</translation>
    </message>
    <message>
        <source>Start or stop listening</source>
        <translation>开始或停止聆听</translation>
    </message>
    <message>
        <source>Mute the microphone</source>
        <translation>麦克风静音</translation>
    </message>
    <message>
        <source>Stop the reply, or drop the turn</source>
        <translation>停止回复，或放弃本轮</translation>
    </message>
    <message>
        <source>Type a question</source>
        <translation>输入问题</translation>
    </message>
    <message>
        <source>New conversation</source>
        <translation>新对话</translation>
    </message>
    <message>
        <source>Look for sound devices again</source>
        <translation>重新查找声音设备</translation>
    </message>
    <message>
        <source>Export the timings as CSV</source>
        <translation>把计时导出为 CSV</translation>
    </message>
    <message>
        <source>Switch between light and dark</source>
        <translation>切换浅色与深色</translation>
    </message>
    <message>
        <source>Larger texts and plots</source>
        <translation>放大文字与图表</translation>
    </message>
    <message>
        <source>Smaller texts and plots</source>
        <translation>缩小文字与图表</translation>
    </message>
    <message>
        <source>Usual size of texts and plots</source>
        <translation>恢复文字与图表的默认大小</translation>
    </message>
    <message>
        <source>Presentation, or back</source>
        <translation>演示，或返回</translation>
    </message>
    <message>
        <source>Settings</source>
        <translation>设置</translation>
    </message>
    <message>
        <source>This list</source>
        <translation>本列表</translation>
    </message>
    <message>
        <source>Close the window</source>
        <translation>关闭窗口</translation>
    </message>
    <message>
        <source>Louder replies</source>
        <translation>调大回复音量</translation>
    </message>
    <message>
        <source>Quieter replies</source>
        <translation>调小回复音量</translation>
    </message>
    <message>
        <source>Keep my voice from interrupting replies</source>
        <translation>不因声音打断回复</translation>
    </message>
    <message>
        <source>Show or hide the latency view</source>
        <translation>显示或隐藏延迟视图</translation>
    </message>
    <message>
        <source>Latency view in its own window, or back</source>
        <translation>将延迟视图移到独立窗口，或移回</translation>
    </message>
    <message>
        <source>Conversations</source>
        <translation>对话记录</translation>
    </message>
    <message>
        <source>Small window, or back</source>
        <translation>小窗口，或返回大窗口</translation>
    </message>
</context>
<context>
    <name>SoundCheckPage</name>
    <message>
        <source>Sensiti&amp;vity</source>
        <translation>灵敏度(&amp;V)</translation>
    </message>
    <message>
        <source>High detects soft voices; low ignores more speech that is not meant for the assistant.</source>
        <translation>高：能听到轻声；低：忽略更多并非对助手说的声音。</translation>
    </message>
    <message>
        <source>Speech</source>
        <translation>语音</translation>
    </message>
    <message>
        <source>Probability that the microphone hears speech. Above the line it starts a turn.</source>
        <translation>麦克风当前听到语音的概率。超过竖线即开始一轮。</translation>
    </message>
    <message>
        <source>Test</source>
        <translation>测试</translation>
    </message>
    <message>
        <source>Records 3 seconds from the microphone, plays them back and discards them.</source>
        <translation>录制麦克风 3 秒，播放给您听，随即丢弃。</translation>
    </message>
    <message>
        <source>Low</source>
        <translation>低</translation>
    </message>
    <message>
        <source>Normal</source>
        <translation>普通</translation>
    </message>
    <message>
        <source>High</source>
        <translation>高</translation>
    </message>
</context>
<context>
    <name>SoundPage</name>
    <message>
        <source>Default microphone</source>
        <translation>默认麦克风</translation>
    </message>
    <message>
        <source>Default loudspeaker</source>
        <translation>默认扬声器</translation>
    </message>
    <message>
        <source>%1 ms</source>
        <translation>%1 毫秒</translation>
    </message>
    <message>
        <source>Automatic</source>
        <translation>自动</translation>
    </message>
    <message>
        <source>On</source>
        <translation>开</translation>
    </message>
    <message>
        <source>Off</source>
        <translation>关</translation>
    </message>
    <message>
        <source>Reduce steady noise</source>
        <translation>降低持续的噪声</translation>
    </message>
    <message>
        <source>Adjust speech to a constant level</source>
        <translation>使语音音量一致</translation>
    </message>
    <message>
        <source>Ignore quieter voices</source>
        <translation>忽略较轻的声音</translation>
    </message>
    <message>
        <source>Other &amp;people</source>
        <translation>旁人(&amp;P)</translation>
    </message>
    <message>
        <source>After two of your turns, speech that is much quieter neither opens a turn nor interrupts a reply. Speech that is repeated within three seconds is heard.</source>
        <translation>在您发言两次之后，比您轻得多的语音不会开启新的发言，也不会打断回答。三秒内重复的语音会被听取。</translation>
    </message>
    <message>
        <source>&amp;Microphone</source>
        <translation>麦克风(&amp;M)</translation>
    </message>
    <message>
        <source>&amp;Loudspeaker</source>
        <translation>扬声器(&amp;L)</translation>
    </message>
    <message>
        <source>Device l&amp;atency</source>
        <translation>设备延迟(&amp;A)</translation>
    </message>
    <message>
        <source>Lower is faster; raise it if the sound stutters.</source>
        <translation>越小越快；声音卡顿时请调大。</translation>
    </message>
    <message>
        <source>Echo &amp;canceller</source>
        <translation>回声消除器(&amp;C)</translation>
    </message>
    <message>
        <source>Both are WebRTC&apos;s and cancel equally well; livekit takes more memory.</source>
        <translation>两者都来自 WebRTC，效果相同；livekit 占用更多内存。</translation>
    </message>
    <message>
        <source>%1 (not installed)</source>
        <translation>%1（未安装）</translation>
    </message>
    <message>
        <source>&amp;Echo cancellation</source>
        <translation>回声消除(&amp;E)</translation>
    </message>
    <message>
        <source>Removes the assistant&apos;s voice from the microphone, so that a reply does not interrupt itself. Automatic turns it off while no echo is measured, for example with headphones.</source>
        <translation>从麦克风中去除助手的声音，使回复不会打断自己。“自动”在测不到回声时（例如使用耳机）将其关闭。</translation>
    </message>
    <message>
        <source>&amp;Noise suppression</source>
        <translation>噪声抑制(&amp;N)</translation>
    </message>
    <message>
        <source>For fans and traffic, about 12 dB. The voice changes a little.</source>
        <translation>针对风扇和交通噪声，约 12 dB。人声会略有变化。</translation>
    </message>
    <message>
        <source>&amp;Gain control</source>
        <translation>增益控制(&amp;G)</translation>
    </message>
    <message>
        <source>For a microphone that is too quiet or far away.</source>
        <translation>适用于音量过低或距离较远的麦克风。</translation>
    </message>
</context>
<context>
    <name>SoundTests</name>
    <message>
        <source>Test microphone</source>
        <translation>测试麦克风</translation>
    </message>
    <message>
        <source>Test loudspeaker</source>
        <translation>测试扬声器</translation>
    </message>
    <message>
        <source>Recording: say something …</source>
        <translation>正在录音：请说话……</translation>
    </message>
    <message>
        <source>Playing …</source>
        <translation>正在播放……</translation>
    </message>
    <message>
        <source>%1 delivers silence. Check that it is switched on and not muted, or choose another one.</source>
        <translation>%1 没有声音信号。请检查它是否已打开、是否被静音，或另选一个。</translation>
    </message>
    <message>
        <source>%1 is too quiet (%2 dBFS). Come closer, raise its level in the system&apos;s sound settings, or turn on gain control.</source>
        <translation>%1 音量太小（%2 dBFS）。请靠近一些，在系统声音设置中调高输入音量，或打开增益控制。</translation>
    </message>
    <message>
        <source>%1 delivers sound (%2 dBFS), but no speech was heard. Say something during the test; if you did, choose another microphone.</source>
        <translation>%1 有声音（%2 dBFS），但没有听到语音。请在测试时说话；如果已经说过，请另选一个麦克风。</translation>
    </message>
    <message>
        <source>%1 is too loud and distorts. Lower its level in the system&apos;s sound settings, or move away from it.</source>
        <translation>%1 音量太大，声音失真。请在系统声音设置中调低输入音量，或离远一些。</translation>
    </message>
    <message>
        <source>%1 is good (%2 dBFS).</source>
        <translation>%1 正常（%2 dBFS）。</translation>
    </message>
    <message>
        <source>The microphone</source>
        <translation>麦克风</translation>
    </message>
</context>
<context>
    <name>SpeculationLine</name>
    <message>
        <source>Speculative replies are off: the server cannot take one back.</source>
        <translation>提前生成已关闭：服务器无法撤回回复。</translation>
    </message>
    <message>
        <source>Speculative replies are off: the engine is slower than real time.</source>
        <translation>提前生成已关闭：引擎慢于实时。</translation>
    </message>
    <message>
        <source>Speculative replies are off: the engine takes too long to recover from a discarded one.</source>
        <translation>提前生成已关闭：舍弃一个回复后，引擎恢复就绪太慢。</translation>
    </message>
    <message>
        <source>The reply is generated at the first pause and held until the end of your turn is confirmed. It is discarded if you continue.</source>
        <translation>第一次停顿时就生成回复并保留；确定您已说完即出声，若您继续说话则舍弃。</translation>
    </message>
    <message>
        <source>Speculative replies: %1, used: %2. Discarded: %3 ms of engine time, %4 s of speech.</source>
        <translation>提前生成的回复：%1 条，采用 %2 条。舍弃：引擎 %3 ms，语音 %4 s。</translation>
    </message>
</context>
<context>
    <name>StageList</name>
    <message>
        <source>The stages of a reply</source>
        <translation>回复的各个阶段</translation>
    </message>
</context>
<context>
    <name>StateBadge</name>
    <message>
        <source>Ready</source>
        <translation>就绪</translation>
    </message>
    <message>
        <source>Press Start to talk, or type a question.</source>
        <translation>按“开始”说话，或输入问题。</translation>
    </message>
    <message>
        <source>Loading</source>
        <translation>加载中</translation>
    </message>
    <message>
        <source>The model is being loaded.</source>
        <translation>正在加载模型。</translation>
    </message>
    <message>
        <source>Listening</source>
        <translation>聆听中</translation>
    </message>
    <message>
        <source>Speak whenever you like.</source>
        <translation>随时可以说话。</translation>
    </message>
    <message>
        <source>Hearing you</source>
        <translation>正在听您说</translation>
    </message>
    <message>
        <source>Your speech is understood as it arrives.</source>
        <translation>边听边理解您的话。</translation>
    </message>
    <message>
        <source>Thinking</source>
        <translation>思考中</translation>
    </message>
    <message>
        <source>The reply is being generated.</source>
        <translation>正在生成回复。</translation>
    </message>
    <message>
        <source>Speaking</source>
        <translation>说话中</translation>
    </message>
    <message>
        <source>The reply is being played.</source>
        <translation>正在播放回复。</translation>
    </message>
    <message>
        <source>Not available</source>
        <translation>不可用</translation>
    </message>
    <message>
        <source>The model could not be loaded.</source>
        <translation>模型无法加载。</translation>
    </message>
    <message>
        <source>Reconnecting</source>
        <translation>正在重新连接</translation>
    </message>
    <message>
        <source>The connection to the server was lost. Once it is back the conversation continues.</source>
        <translation>与服务器的连接已断开。恢复后对话会继续。</translation>
    </message>
    <message>
        <source>What you say goes to the server %1.</source>
        <translation>您说的话会发送到服务器 %1。</translation>
    </message>
    <message>
        <source>State: %1</source>
        <translation>状态：%1</translation>
    </message>
    <message>
        <source>No microphone</source>
        <translation>没有麦克风</translation>
    </message>
    <message>
        <source>Connect one (it is used automatically), or type a question.</source>
        <translation>请连接麦克风（会自动使用），或输入问题。</translation>
    </message>
    <message>
        <source>Muted</source>
        <translation>已静音</translation>
    </message>
    <message>
        <source>The microphone is muted. Press Ctrl+M to unmute it.</source>
        <translation>麦克风已静音。按 Ctrl+M 取消静音。</translation>
    </message>
    <message>
        <source>No loudspeaker</source>
        <translation>没有扬声器</translation>
    </message>
    <message>
        <source>Replies can only be read. Connect one; it is used automatically.</source>
        <translation>回答只能阅读。请连接扬声器（会自动使用）。</translation>
    </message>
    <message>
        <source>No sound</source>
        <translation>没有声音</translation>
    </message>
    <message>
        <source>The microphone delivers silence. Check that it is not muted, or choose another one.</source>
        <translation>麦克风没有声音信号。请检查它是否被静音，或另选一个。</translation>
    </message>
    <message>
        <source>Hold the button below, or %1, while you speak.</source>
        <translation>说话时按住下方按钮，或 %1。</translation>
    </message>
    <message>
        <source>Hold the button below while you speak.</source>
        <translation>说话时按住下方按钮。</translation>
    </message>
    <message>
        <source>Hold the button to talk</source>
        <translation>按住按钮说话</translation>
    </message>
    <message>
        <source>Hold %1 to talk</source>
        <translation>按住 %1 说话</translation>
    </message>
    <message>
        <source> or </source>
        <translation> 或 </translation>
    </message>
</context>
<context>
    <name>TalkButton</name>
    <message>
        <source>Hold to talk</source>
        <translation>按住说话</translation>
    </message>
    <message>
        <source>Release to send</source>
        <translation>松开发送</translation>
    </message>
    <message>
        <source>Press, speak, and release: the answer begins at once. Keys: %1. While you type a question, Space types a space.</source>
        <translation>按下、说话、松开：随即开始回答。按键：%1。已开始输入问题时，空格键输入空格。</translation>
    </message>
</context>
<context>
    <name>TalkPage</name>
    <message>
        <source>%1 is already in use in this window. Choose other keys.</source>
        <translation>%1 在此窗口中另有用途。请选择其他按键。</translation>
    </message>
    <message>
        <source>%1 would type or edit something. Add Ctrl, Alt or the Windows key.</source>
        <translation>%1 会输入或编辑内容。请加上 Ctrl、Alt 或 Windows 键。</translation>
    </message>
    <message>
        <source>Both</source>
        <translation>两者</translation>
    </message>
    <message>
        <source>Hotkey of push-to-talk</source>
        <translation>按键说话的热键</translation>
    </message>
    <message>
        <source>Push-to-talk</source>
        <translation>按键说话</translation>
    </message>
    <message>
        <source>Hotkey to mute the microphone</source>
        <translation>麦克风静音热键</translation>
    </message>
    <message>
        <source>Hotkey to show or hide the window</source>
        <translation>显示或隐藏窗口的热键</translation>
    </message>
    <message>
        <source>T&amp;alk by</source>
        <translation>说话方式(&amp;A)</translation>
    </message>
    <message>
        <source>&amp;Hotkey to talk</source>
        <translation>说话热键(&amp;H)</translation>
    </message>
    <message>
        <source>Hotkey to &amp;mute</source>
        <translation>静音热键(&amp;M)</translation>
    </message>
    <message>
        <source>Hotkey for the &amp;window</source>
        <translation>窗口热键(&amp;W)</translation>
    </message>
    <message>
        <source>With Ctrl, Alt or the Windows key, or a function key. They work in every window: on X11 (package python-xlib), and on Wayland if the portal of the desktop allows it, which asks you (package jeepney). No other key is read.</source>
        <translation>须含 Ctrl、Alt 或 Windows 键，或为功能键。在所有窗口中都有效：在 X11 上（软件包 python-xlib），以及在 Wayland 上，如果桌面门户询问您后允许（软件包 jeepney）。不会读取其他按键。</translation>
    </message>
    <message>
        <source>%1 is another hotkey already. Choose other keys.</source>
        <translation>%1 已是另一个热键。请选择其他按键。</translation>
    </message>
    <message>
        <source>Voice activity</source>
        <translation>语音激活</translation>
    </message>
    <message>
        <source>Push-to-talk: hold the button in the window, or Space, and speak. While you type a question, Space types a space. Pressing stops a reply; releasing is answered at once.</source>
        <translation>按键说话：按住窗口中的按钮或空格键，然后说话。已开始输入问题时，空格键输入空格。按下会停止回复，松开后立即回答。</translation>
    </message>
</context>
<context>
    <name>Transcript</name>
    <message>
        <source>Conversation</source>
        <translation>对话</translation>
    </message>
</context>
<context>
    <name>Tray</name>
    <message>
        <source>Do not interrupt replies</source>
        <translation>不打断回复</translation>
    </message>
    <message>
        <source>Hide the window</source>
        <translation>隐藏窗口</translation>
    </message>
    <message>
        <source>Mute the microphone</source>
        <translation>麦克风静音</translation>
    </message>
    <message>
        <source>Quit</source>
        <translation>退出</translation>
    </message>
    <message>
        <source>Show the window</source>
        <translation>显示窗口</translation>
    </message>
    <message>
        <source>Start listening</source>
        <translation>开始聆听</translation>
    </message>
    <message>
        <source>Stop listening</source>
        <translation>停止聆听</translation>
    </message>
</context>
<context>
    <name>TurnMenu</name>
    <message>
        <source>Copy the question</source>
        <translation>复制问题</translation>
    </message>
    <message>
        <source>Copy the reply</source>
        <translation>复制回答</translation>
    </message>
    <message>
        <source>Ask again (removes what came after)</source>
        <translation>重新提问（删除之后的内容）</translation>
    </message>
    <message>
        <source>Delete question and reply</source>
        <translation>删除问题和回答</translation>
    </message>
    <message>
        <source>Save the reply as audio …</source>
        <translation>将回答保存为声音……</translation>
    </message>
</context>
<context>
    <name>UserBubble</name>
    <message>
        <source>You spoke</source>
        <translation>您说</translation>
    </message>
    <message>
        <source>Sample question</source>
        <translation>示例问题</translation>
    </message>
    <message>
        <source>You typed</source>
        <translation>您输入</translation>
    </message>
    <message>
        <source>dropped</source>
        <translation>已放弃</translation>
    </message>
    <message>
        <source>%1 of %2 s</source>
        <translation>%1 / %2 秒</translation>
    </message>
    <message>
        <source>listening …</source>
        <translation>聆听中……</translation>
    </message>
    <message>
        <source>%1 s</source>
        <translation>%1 秒</translation>
    </message>
    <message>
        <source>nothing was heard</source>
        <translation>没有听到内容</translation>
    </message>
</context>
<context>
    <name>VolumeSlider</name>
    <message>
        <source>Volume of replies</source>
        <translation>回复音量</translation>
    </message>
    <message>
        <source>Volume %1 % (Ctrl+Up, Ctrl+Down)</source>
        <translation>音量 %1 %（Ctrl+Up，Ctrl+Down）</translation>
    </message>
</context>
<context>
    <name>WaterfallView</name>
    <message>
        <source>Waterfall of the last turn</source>
        <translation>上一轮的瀑布图</translation>
    </message>
</context>
<context>
    <name>WaysToTalk</name>
    <message>
        <source>Mute the microphone, in every window</source>
        <translation>麦克风静音，在所有窗口中有效</translation>
    </message>
    <message>
        <source>Show or hide the window, from every window</source>
        <translation>显示或隐藏窗口，在所有窗口中有效</translation>
    </message>
    <message>
        <source>Hold to talk; types a space while you type a question</source>
        <translation>按住说话；已开始输入问题时输入空格</translation>
    </message>
    <message>
        <source>Hold to talk</source>
        <translation>按住说话</translation>
    </message>
    <message>
        <source>mute or unmute the microphone</source>
        <translation>麦克风静音或取消静音</translation>
    </message>
    <message>
        <source>show or hide the window</source>
        <translation>显示或隐藏窗口</translation>
    </message>
    <message>
        <source>hold to talk</source>
        <translation>按住说话</translation>
    </message>
</context>
<context>
    <name>Welcome</name>
    <message>
        <source>Ask something</source>
        <translation>问点什么吧</translation>
    </message>
    <message>
        <source>Press Start and speak, type a question below, or try one of the samples. %1</source>
        <translation>按“开始”说话，在下方输入问题，或试试示例。%1</translation>
    </message>
    <message>
        <source>Everything stays on this computer.</source>
        <translation>一切都留在这台电脑上。</translation>
    </message>
    <message>
        <source>What you say goes to the server %1.</source>
        <translation>您说的话会发送到服务器 %1。</translation>
    </message>
    <message>
        <source>Not available</source>
        <translation>不可用</translation>
    </message>
    <message>
        <source>Fix the error, then restart the program.</source>
        <translation>请排除错误的原因，然后重新启动程序。</translation>
    </message>
    <message>
        <source>Ask this question</source>
        <translation>问这个问题</translation>
    </message>
    <message>
        <source>English</source>
        <translation>英语</translation>
    </message>
    <message>
        <source>Chinese</source>
        <translation>中文</translation>
    </message>
    <message>
        <source> and </source>
        <translation>和</translation>
    </message>
    <message>
        <source>It speaks %1.</source>
        <translation>它会说%1。</translation>
    </message>
    <message>
        <source>It understands and speaks only %1: ask in %1.</source>
        <translation>它只听得懂、也只会说%1，请用%1提问。</translation>
    </message>
</context>
</TS>
